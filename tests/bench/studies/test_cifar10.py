"""The CIFAR-10 experiment: what it asks of milkweed, that it goes on where it was, and what it makes of the answers."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from milkweed.bench.studies import cifar10
from milkweed.bench.studies.cifar10 import TITLES, ExperimentError, Plan, command, run, summary
from milkweed.bench.studies.pictures import cifar10 as plot
from milkweed.cli.app import build_app

TOP1 = {"dense": 84.0, "monarch": 83.5, "s2d": 84.25, "d2s": 12.0, "d2s_aware": 40.0, "d2s_recovered": 83.0}
PARAMETERS = {"dense": 732_874, "s2d": 732_874}


class FakeMilkweed:
    """Writes folders as bundles and answers by their names; what it was asked is in `asked`."""

    def __init__(self, fail_at: str | None = None) -> None:
        self.asked: list[list[str]] = []
        self.fail_at = fail_at

    def __call__(self, arguments: Sequence[str], log: Path) -> str:
        self.asked.append(list(arguments))
        verb, bundle = arguments[0], Path(arguments[2] if arguments[0] == "compress" else arguments[1])
        if self.fail_at == bundle.name:
            raise ExperimentError("killed")
        if verb in ("train", "compress"):
            bundle.mkdir()
            return ""
        if verb == "evaluate":
            top1 = TOP1[bundle.name] + (1 if bundle.parent.name == "seed1" else 0)
            return json.dumps({"top1": top1, "correct1": round(100 * top1), "images": 10_000})
        return json.dumps(
            {
                "version": "0" * 12,
                "parameters": {"total": PARAMETERS.get(bundle.name, 609_994)},
                "macs": {"per_image": 48_929_152},
                "bytes": {"on_disk": 2_467_582},
                "provenance": {"commands": [{"seconds": 60.0}, {"seconds": 1.5}]},
                "report": {"history": [{"epoch": 1, "phase": "train", "loss": 1.75}]},
            }
        )

    def made(self) -> list[str]:
        """Names of the models it was asked to make, in order."""
        return [Path(a[2] if a[0] == "compress" else a[1]).name for a in self.asked if a[0] in ("train", "compress")]


def option(arguments: Sequence[str], name: str) -> str:
    return arguments[arguments.index(name) + 1]


def ran(tmp_path: Path, milkweed: FakeMilkweed, out: str = "out.json", **plan: Any) -> dict[str, Any]:
    """Run the experiment in a folder of the test."""
    return run(tmp_path / "data", tmp_path / "work", Plan(**plan), out=tmp_path / out, milkweed=milkweed)


def test_every_sibling_is_made_and_measured_once(tmp_path: Path) -> None:
    milkweed, out = FakeMilkweed(), tmp_path / "results" / "cifar10.json"
    document = ran(tmp_path, milkweed, "results/cifar10.json")
    assert milkweed.made() == list(TITLES)
    assert json.loads(out.read_text()) == document
    assert [row["top1"] for row in document["rows"]] == list(TOP1.values())
    assert {row["seconds"] for row in document["rows"]} == {61.5}
    assert str(tmp_path) not in out.read_text(), "a path of this machine in the results"
    again = FakeMilkweed()
    assert ran(tmp_path, again)["rows"] == document["rows"]
    assert again.asked == []


def test_an_interrupted_experiment_goes_on_where_it_was(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="killed"):
        ran(tmp_path, FakeMilkweed(fail_at="s2d"))
    milkweed = FakeMilkweed()
    document = ran(tmp_path, milkweed)
    assert milkweed.made() == ["s2d", "d2s", "d2s_aware", "d2s_recovered"]
    assert [row["name"] for row in document["rows"]] == list(TOP1)


def test_a_folder_of_another_plan_is_refused(tmp_path: Path) -> None:
    ran(tmp_path, FakeMilkweed())
    with pytest.raises(ExperimentError, match="its epochs is 4, not 7"):
        ran(tmp_path, FakeMilkweed(), epochs=7)


def test_a_failing_command_is_named_with_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"milkweed evaluate ended with 2: .*no such option: --what") as caught:
        cifar10.call_milkweed(["evaluate", "--what"], tmp_path / "log")
    assert str(tmp_path / "log") in str(caught.value)
    assert (tmp_path / "log").read_text().startswith("$ milkweed evaluate --what\n")


def test_models_differ_in_structure_alone() -> None:
    data, folder = Path("data"), Path("work/seed3")
    dense, monarch, s2d = (command(Plan(), name, 3, data, folder) for name in ("dense", "monarch", "s2d"))
    shared = dense[2 : dense.index("--structure")]
    assert shared == monarch[2 : monarch.index("--structure")] == s2d[2 : s2d.index("--structure")]
    assert option(shared, "--seed") == "3"
    assert option(shared, "--data") == "data/train"
    assert option(dense, "--structure") == "dense"
    # S2D begins with the state that the Monarch run leaves behind at 70 % of four epochs, in whole epochs.
    assert option(monarch, "--keep-state-at") == "3"
    assert option(s2d, "--start-at") == "work/seed3/monarch.states/epoch-3"


def test_summary_compares_each_seed_with_its_own_dense(tmp_path: Path) -> None:
    document = ran(tmp_path, FakeMilkweed(), seeds=(0, 1))
    lines = {line["name"]: line for line in document["summary"]}
    assert lines["monarch"]["top1"] == 84.0
    assert lines["monarch"]["to_dense"] == -0.5
    assert lines["monarch"]["seeds"] == [0, 1]
    # the spread of the mean of 20,000 answers, each right with p = 0.84
    right = np.random.default_rng(0).binomial(20_000, 0.84, 200_000) / 200
    assert lines["monarch"]["sampling_error"] == pytest.approx(right.std(), rel=0.01)


def test_an_unfinished_experiment_has_a_summary() -> None:
    row = {"name": "dense", "seed": 0, "top1": 80.0, "images": 100, "seconds": 1.0}
    rows: list[dict[str, Any]] = [{**row, "parameters": 1, "macs": 1, "bytes_on_disk": 1}]
    assert [line["name"] for line in summary(rows)] == ["dense"]
    assert summary(rows)[0]["sampling_error"] == 4.0


def test_the_plot_shows_the_figures(tmp_path: Path) -> None:
    document = ran(tmp_path, FakeMilkweed())
    drawn = plot(document, tmp_path / "a.svg").read_text()
    assert "83.50 % · 610 k parameters" in drawn
    assert "12.00 % · 610 k parameters" in drawn


@pytest.mark.parametrize("name", TITLES)
def test_milkweed_takes_the_command(name: str) -> None:
    arguments = command(Plan(), name, 3, Path("data"), Path("work/seed3"))
    parsers = typer.main.get_command(build_app(arguments[0])).commands  # type: ignore[attr-defined]
    values = parsers[arguments[0]].make_context(arguments[0], list(arguments[1:])).params
    assert values["out"] == Path("work/seed3") / name
    assert values["threads"] == 1
    if arguments[0] == "train":
        assert (values["epochs"], values["lr"], values["amp"], values["seed"]) == (4, 2e-3, "bfloat16", 3)
    else:
        assert (values["bundle"], values["layers"], values["nblocks"]) == (Path("work/seed3/dense"), "mlp", 4)
        assert values["recover_epochs"] == (1 if name == "d2s_recovered" else None)
