"""Compressing and densifying bundles: exact where that is possible, errors on record, nonsense refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from milkweed.models import bundle_to_dense, compress_model, load_bundle
from milkweed.models.compress import CompressReport, CompressRequest
from milkweed.models.compress.compression import NO_DATA
from milkweed.models.errors import BundleError
from milkweed.models.layers.monarch import MonarchLinear
from milkweed.models.progress import Progress
from milkweed.models.report import LayerRow, read_report


def compress(source: Path, out: Path, overwrite: bool = False, **options: Any) -> CompressReport:
    return compress_model(source, out, CompressRequest(**options), overwrite=overwrite)


def changed(report: CompressReport) -> list[LayerRow]:
    return [row for row in report.report.layers if row.kind != "dense"]


def test_compressing_projects_the_chosen_layers_and_records_it(tmp_path: Path, dense: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    report = compress_model(
        dense,
        tmp_path / "m",
        CompressRequest(layers=("mlp", "qkv"), nblocks=4),
        progress=Progress(step=lambda *args: seen.append(args)),
        command="milkweed compress a b",
    )
    before, source = load_bundle(dense)
    after, config = load_bundle(tmp_path / "m")
    rows = changed(report)
    assert list(report.layers) == [row.name for row in rows] == list(config.structure)
    assert seen == [("projecting layers", done, 6) for done in range(1, 7)]
    assert config == report.config
    for row in rows:
        module = after.get_submodule(row.name)
        linear = before.get_submodule(row.name)
        assert isinstance(module, MonarchLinear)
        weight = linear.weight.double()
        error = (module.dense_weight().double() - weight).norm() / weight.norm()
        assert row.error == pytest.approx(float(error), abs=1e-6)
        assert torch.equal(module.bias, linear.bias)
        assert row.weights == module.weight_count < row.dense_weights == weight.numel()
        assert (row.kind, row.nblocks, row.rank, row.reason) == ("monarch", 4, None, "as asked")
    for name in ("blocks.0.attn.proj", "head"):
        assert torch.equal(after.get_submodule(name).weight, before.get_submodule(name).weight)
    assert report.parameters_after == sum(p.numel() for p in after.parameters()) < report.parameters_before
    compression = config.metrics["compression"]
    assert compression["layers"]["blocks.0.mlp.fc1"] == {"kind": "monarch", "error": rows[1].error}
    assert compression["method"] == "nearest matrices, no data"
    step = config.provenance["commands"][-1]
    assert (step["command"], step["input_version"], step["input_metrics"]) == (
        "compress",
        source.version,
        {"top1": 0.9},
    )
    asked = {"layers": ["mlp", "qkv"], "structure": "monarch", "nblocks": 4, "rank": None, "budget": None}
    assert {name: step["arguments"][name] for name in asked} == asked
    assert config.provenance["source"] == {"file": "x"}
    assert "top1" not in config.metrics


def test_the_report_lies_in_the_bundle(tmp_path: Path, dense: Path) -> None:
    report = compress(dense, tmp_path / "m", rank=1).report
    assert read_report(tmp_path / "m") == report
    config = load_bundle(tmp_path / "m")[1]
    assert (report.kind, report.version) == ("compress", config.version)
    assert report.input_version == load_bundle(dense)[1].version != report.version
    assert (report.before, report.after, report.data, report.history) == (None, None, (), ())
    assert report.warnings == (NO_DATA,)
    before, after = report.totals_before, report.totals_after
    assert before is not None
    assert after is not None
    saved = sum(row.dense_weights - row.weights for row in report.layers)
    assert before.parameters - after.parameters == saved > 0
    assert before.macs - after.macs == 17 * saved  # 16 patches and the class token
    assert before.bytes - after.bytes == 4 * saved
    (written,) = report.curve
    assert (written.chosen, written.parameters, written.kl) == (True, after.parameters, None)
    assert written.share == pytest.approx(after.parameters / before.parameters)


def test_what_is_monarch_already_is_kept(tmp_path: Path, dense: Path) -> None:
    compress(dense, tmp_path / "a", layers=("mlp",), nblocks=4)
    report = compress(tmp_path / "a", tmp_path / "b", layers=("qkv",), nblocks=2)
    config = report.config
    assert {layer.nblocks for name, layer in config.structure.items() if "mlp" in name} == {4}
    assert {layer.nblocks for name, layer in config.structure.items() if "qkv" in name} == {2}
    assert [step["command"] for step in config.provenance["commands"]] == ["import", "compress", "compress"]
    with pytest.raises(ValueError, match="is a Monarch layer already"):
        compress(tmp_path / "a", tmp_path / "c", layers=("mlp",))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": ("nothing",)}, "layers 'nothing' selects no linear layer"),
        ({"layers": ()}, "no layers selected"),
        (
            {"nblocks": 1},
            "layer blocks.0.mlp.fc1 would grow from 4096 to 5120 weights "
            "as monarch with nblocks 1, rank None: use more blocks or a smaller rank",
        ),
        ({"nblocks": 33}, "layer blocks.0.mlp.fc1: nblocks 33 must be between 1 and 32"),
        ({"rank": 99}, "rank 99 must be between 1 and 8"),
        ({"rank": 8}, "would grow"),
    ],
)
def test_senseless_compression_is_refused(tmp_path: Path, dense: Path, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        compress(dense, tmp_path / "m", **options)
    assert message in str(caught.value)
    assert not (tmp_path / "m").exists()


def test_outputs_are_not_overwritten_unasked(tmp_path: Path, dense: Path) -> None:
    compress(dense, tmp_path / "m")
    with pytest.raises(BundleError, match="exists already"):
        compress(dense, tmp_path / "m")
    compress(dense, tmp_path / "m", nblocks=2, overwrite=True)
    assert {layer.nblocks for layer in load_bundle(tmp_path / "m")[1].structure.values()} == {2}


def test_densifying_a_dense_bundle_is_refused(tmp_path: Path, dense: Path) -> None:
    with pytest.raises(ValueError, match="every layer is dense already"):
        bundle_to_dense(dense, tmp_path / "d")
