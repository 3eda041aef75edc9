"""The model benchmark: both sides compute the same, figures are what they say, the command writes them."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from milkweed.bench import model as bench
from milkweed.bench.server.bundles import TINY, TINY_PREPROCESS
from milkweed.cli import main
from milkweed.models import BundleConfig, create_model, save_bundle, select_linears
from milkweed.models.bundle.labels import default_labels
from milkweed.models.layers.select import layer_specs_for

ARCH, ARGS = "deit_tiny_patch16_224", {**TINY, "num_classes": 5}
PIXELFLY = {"rank": 8, "block_size": 4, "butterfly_size": 4, "n_factors": 1, "gating": False}
LAYERS, TOKENS, DENSE = 4, 17, 64 * 256  # linear layers of the MLPs, tokens of an image, weights of a dense layer


def save_bundle_of(path: Path, kind: str | None = "monarch", **options: Any) -> Path:
    """The small model with MLPs of a kind; None = dense."""
    torch.manual_seed(0)
    dense = create_model(ARCH, **ARGS)
    structure = layer_specs_for(dense, select_linears(dense, ["mlp"]), kind, **options) if kind else {}
    config = BundleConfig(arch=ARCH, arch_args=ARGS, structure=structure, preprocess=TINY_PREPROCESS)
    save_bundle(path, create_model(ARCH, layer_specs=structure, **ARGS), config, default_labels(5))
    return path


def test_a_bundle_is_compared_with_itself_densified(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    seen: list[tuple[int, int]] = []
    document = bench.run(
        save_bundle_of(tmp_path / "bundle"),
        batch_sizes=(1, 3),
        seconds=0,
        mlp=False,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert torch.get_num_threads() == threads
    rows = document["rows"]
    dtypes = ("float32", "bfloat16")
    assert [(row["dtype"], row["images"]) for row in rows] == [(dtype, images) for dtype in dtypes for images in (1, 3)]
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    for row in rows:
        assert row["rounds"] == bench.LEAST_ROUNDS
        assert row["relative_difference"] < (1e-5 if row["dtype"] == "float32" else 5e-2)
        assert row["relative_difference"] > 0  # two computations, not one twice
        assert row["macs_dense"] - row["macs_monarch"] == TOKENS * LAYERS * (DENSE - 64 * (64 + 256) // 4)
        assert row["ratio_wall"] == pytest.approx(row["dense"]["wall_ms"] / row["monarch"]["wall_ms"], rel=1e-2)
    assert document["settings"]["archs"] == []
    assert document["machine"]["cores"] >= 1


def test_an_architecture_gets_monarch_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "LEAST_ROUNDS", 2)
    monkeypatch.setattr(bench, "DTYPES", ("float32",))
    document = bench.run(archs=("deit_tiny_patch16_224",), batch_sizes=(1,), seconds=0, mlp=False)
    (row,) = document["rows"]
    saved = 12 * 197 * (2 * 192 * 768 - 2 * 192 * (192 + 768) // 4)
    assert row["macs_dense"] - row["macs_monarch"] == saved
    assert row["relative_difference"] < 1e-5


def test_the_mlp_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "MLPS", {"tiny": (32, 64)})
    document = bench.run(archs=(), seconds=0, nblocks=2)
    assert [row["name"] for row in document["rows"]] == ["tiny mlp 32-64"] * 2
    for row in document["rows"]:
        assert row["macs_dense"] == 197 * 2 * 32 * 64
        assert row["macs_monarch"] == 197 * 2 * (32 + 64) * 16
        assert row["relative_difference"] < (1e-5 if row["dtype"] == "float32" else 2e-2)


def test_calls_alternate_and_medians_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    clock = {"now": 0.0}

    def call(side: str, seconds: float) -> Callable[[], torch.Tensor]:
        def run() -> torch.Tensor:
            order.append(side)
            clock["now"] += seconds
            return torch.ones(2)

        return run

    monkeypatch.setattr("time.perf_counter", lambda: clock["now"])
    monkeypatch.setattr("time.process_time", lambda: clock["now"] / 2)
    pair = bench.Pair("mlp", "x", "float32", 1, call("dense", 0.030), call("monarch", 0.010), 6, 2)
    row = bench.measure(pair, seconds=0.4)
    dense, monarch = row["dense"], row["monarch"]
    assert (row["rounds"], dense["wall_ms"], monarch["wall_ms"]) == (10, 30, 10)
    assert (dense["cpu_ms"], monarch["cpu_ms"], row["ratio_wall"], row["ratio_cpu"]) == (15, 5, 3, 3)
    assert dense["wall_iqr_ms"] == pytest.approx(0, abs=1e-9)
    assert order[6:10] == ["dense", "monarch", "monarch", "dense"]  # two of each warm up


def test_the_command_writes_json(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = save_bundle_of(tmp_path / "bundle"), tmp_path / "results" / "model.json"
    arguments = ["bench", "model", str(path), "--seconds", "0", "--no-mlp", "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/milkweed", *arguments, "--json"])
    assert main() == 0
    printed, err = capfd.readouterr()
    document = json.loads(printed)
    assert err == ""
    assert document == json.loads(out.read_text())
    assert document["benchmark"] == "model"
    assert document["command"] == shlex.join(["milkweed", *arguments, "--json"])
    assert document["settings"]["bundle"] == path.name
    assert main(arguments) == 0
    printed, err = capfd.readouterr()
    assert err == f"milkweed: wrote {out}\n"
    assert len([line for line in printed.splitlines() if "bfloat16" in line]) == 2


@pytest.mark.parametrize(
    ("kind", "options", "weights"), [("lowrank", {"rank": 8}, 8 * 320), ("pixelfly", PIXELFLY, 8 * 320 + DENSE // 2)]
)
def test_bundles_of_other_kinds_are_compared_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, options: dict[str, Any], weights: int
) -> None:
    monkeypatch.setattr(bench, "LEAST_ROUNDS", 2)
    monkeypatch.setattr(bench, "DTYPES", ("float32",))
    bundle = save_bundle_of(tmp_path / "b", kind, **options)
    (row,) = bench.run(bundle, batch_sizes=(1,), seconds=0, mlp=False)["rows"]
    assert 0 < row["relative_difference"] < 1e-5
    assert row["macs_dense"] - row["macs_monarch"] == TOKENS * LAYERS * (DENSE - weights)


def test_a_bundle_that_cannot_be_dense_is_refused(tmp_path: Path) -> None:
    gated = save_bundle_of(tmp_path / "b", "pixelfly", **{**PIXELFLY, "gating": True})
    with pytest.raises(ValueError, match=r"layer blocks\.0\.mlp\.fc1: a Pixelfly layer whose gate depends"):
        bench.run(gated, batch_sizes=(1,), seconds=0, mlp=False)


def test_a_dense_bundle_is_refused(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = save_bundle_of(tmp_path / "bundle", None)
    assert main(["bench", "model", str(path), "--out", str(tmp_path / "x.json")]) == 1
    want = f"milkweed: error: bundle {path}: has no structured layer, nothing to compare: compress it first\n"
    assert capfd.readouterr() == ("", want)
    assert not (tmp_path / "x.json").exists()
