"""`milkweed compress --images` and `milkweed inspect` print and draw the Pareto frontier of a search."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from milkweed.models import BundleConfig, load_bundle, save_bundle

from ...support.command import Milkweed
from ...support.frontiers import MODELS, record


@pytest.fixture
def searched(bundle: Path, tmp_path: Path) -> Callable[[Any], Path]:
    """Make a copy of the bundle whose metrics have this as the record of a search."""

    def make(found: Any) -> Path:
        model, config = load_bundle(bundle)
        save_bundle(tmp_path / "fast", model, replace(config, metrics={"search": found}), overwrite=True)
        return tmp_path / "fast"

    return make


def test_inspect_prints_the_frontier(milkweed: Milkweed, searched: Callable[[Any], Path]) -> None:
    ran = milkweed("inspect", searched(record())).ok(quiet=True)
    lines = ran.out.splitlines()
    begin = lines.index("search")
    assert "metrics" not in lines  # the record is all that they have, and is printed once
    assert [line.split(maxsplit=1)[1].strip() for line in lines[begin + 1 : begin + 4]] == [
        MODELS[3][0],
        "speedup 3.03 over dense in openvino float32 (1.72 over openvino bfloat16), top-1 agreement 92.6 % "
        "[90.3, 94.9], top-1 77.2 % (dense 77.4 %)",
        "on  500 held-out images, on AMD EPYC, 2 cores; [95 %]",
    ]
    *shown, others = lines[begin + 6 :]
    assert lines[begin + 5].split("  ")[-1].strip() == "size"
    assert "ms at 8  ms at 1" in lines[begin + 5]
    assert others == "3 other models measured that a faster one beats (--json has all, --plot draws them)"
    assert len(shown) == sum(row[8] for row in MODELS)
    assert not any(line.startswith("*") for line in shown)  # all of them are on the Pareto frontier
    (chosen,) = (line for line in shown if line.startswith("-> "))
    name, *figures = chosen[3:].split("  openvino bfloat16 ")
    assert name.strip() == MODELS[3][0]
    assert figures[0].split() == [
        "6.80",
        "8.70",
        "3.03x",
        "(1.72x)",
        "0.0261",
        "92.6",
        "%",
        "-0.5",
        "[-0.9,",
        "-0.1]",
        "-0.2",
        "[-2.5,",
        "+2.1]",
        "6.00",
        "MB",
    ]
    assert "SmoothQuant" not in ran.out
    assert "search.models" not in ran.out  # not once more among the metrics
    assert milkweed("inspect", searched(record()), "--json").document["metrics"]["search"] == record()


def test_inspect_draws_the_frontier(
    milkweed: Milkweed, bundle: Path, searched: Callable[[Any], Path], tmp_path: Path
) -> None:
    picture = tmp_path / "new" / "front.svg"
    ran = milkweed("inspect", searched(record()), "--plot", picture, "--json")
    assert (ran.code, ran.err) == (0, f"milkweed: wrote {picture}\n")
    assert "KL to the dense model on 500 images: up is closer" in picture.read_text()
    ran = milkweed("inspect", bundle, "--plot", picture)
    assert ran.code == 1
    assert f"bundle {bundle} has no record of a search to draw" in ran.err


def test_a_record_that_makes_no_sense_is_named_and_passed_over(
    milkweed: Milkweed, searched: Callable[[Any], Path]
) -> None:
    path = searched({"models": []})
    ran = milkweed("inspect", path).ok()
    assert ran.err == f"milkweed: bundle {path}: metrics.search.dense: Field required: passed over\n"
    assert "\nsearch\n" not in ran.out


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("json_too", [False, True])
def test_compress_prints_all_models_and_draws_them(
    milkweed: Milkweed,
    bundle: Path,
    searched: Callable[[Any], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    json_too: bool,
) -> None:
    def search(job: Any, progress: Any) -> tuple[Any, BundleConfig]:
        assert (job.source, job.target.speedup, job.batches) == (bundle, 3.0, (8, 1))
        return SimpleNamespace(seconds=754.0, work=tmp_path / "gone"), load_bundle(searched(record()))[1]

    monkeypatch.setattr("milkweed.compress.write.compress", search)
    picture, out = tmp_path / "front.png", tmp_path / "out"
    arguments = ("--images", tmp_path, "--speedup", 3, "--batch", "8,1", "--plot", picture)
    ran = milkweed("compress", bundle, out, *arguments, *(("--json",) if json_too else ()))
    assert (ran.code, ran.err) == (0, f"milkweed: wrote {picture}\n")
    assert picture.read_bytes().startswith(b"\x89PNG")
    if json_too:
        assert json.loads(ran.out) == {"bundle": str(out), "version": ran.document["version"], **record()}
        return
    for name, *_ in MODELS:
        assert name in ran.out
    fields = dict(
        line.split("  ", 1) for line in ran.out.splitlines() if line.startswith(("took", "judged", "warning"))
    )
    assert fields["took"].strip() == "12 min 34 s"
    assert fields["judged on"].strip() == "500 held-out images; top-1 of the dense model 77.4 %"
    assert "expected change of top-1 lies between −0.9 and −0.1 points" in fields["warning 2"]
