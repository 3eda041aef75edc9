"""Compressing and densifying bundles: exact where that is possible, errors on record, nonsense refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from milkweed.models import (
    BundleConfig,
    compress_model,
    create_model,
    densify_model,
    load_bundle,
    save_bundle,
)
from milkweed.models.compress import densify_layer
from milkweed.models.errors import BundleError
from milkweed.models.labels import default_labels
from milkweed.models.monarch import MonarchLinear
from milkweed.models.registry import default_preprocess
from milkweed.models.structure import structure_of


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        result: Tensor = model(torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    return result


@pytest.fixture
def dense(tmp_path: Path, tiny_vit: dict[str, Any]) -> Path:
    torch.manual_seed(2)
    model = create_model("deit_tiny_patch16_224", num_classes=6, **tiny_vit)
    config = BundleConfig(
        arch="deit_tiny_patch16_224",
        arch_args={"num_classes": 6, **tiny_vit},
        preprocess=default_preprocess("deit_tiny_patch16_224", **tiny_vit),
        provenance={"source": {"file": "x"}, "commands": [{"command": "import"}]},
        metrics={"top1": 0.9},
        labels=default_labels(6),
    )
    save_bundle(tmp_path / "dense", model, config)
    return tmp_path / "dense"


def test_compressing_projects_the_chosen_layers_and_records_it(tmp_path: Path, dense: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    report = compress_model(
        dense, tmp_path / "m", layers=["mlp", "qkv"], nblocks=4, progress=lambda *args: seen.append(args)
    )
    before, source = load_bundle(dense)
    after, config = load_bundle(tmp_path / "m")
    assert [layer.name for layer in report.layers] == [name for _, _, name in seen] == list(config.structure)
    assert len(seen) == 6
    assert config == report.config
    for layer in report.layers:
        module = after.get_submodule(layer.name)
        linear = before.get_submodule(layer.name)
        assert isinstance(module, MonarchLinear)
        weight = linear.weight.double()
        error = (module.dense_weight().double() - weight).norm() / weight.norm()
        assert layer.relative_error == pytest.approx(float(error), abs=1e-6)
        assert torch.equal(module.bias, linear.bias)
        assert layer.weights < layer.dense_weights
    for name in ("blocks.0.attn.proj", "head"):
        assert torch.equal(after.get_submodule(name).weight, before.get_submodule(name).weight)
    assert report.parameters_after == sum(p.numel() for p in after.parameters()) < report.parameters_before
    compression = config.metrics["compression"]
    assert compression["layers"]["blocks.0.mlp.fc1"]["relative_error"] == report.layers[1].relative_error
    step = config.provenance["commands"][-1]
    assert (step["command"], step["input_version"], step["input_metrics"]) == (
        "compress",
        source.version,
        {"top1": 0.9},
    )
    assert step["arguments"] == {"layers": ["mlp", "qkv"], "nblocks": 4, "rank": None}
    assert config.provenance["source"] == {"file": "x"}
    assert "top1" not in config.metrics


def test_densifying_computes_the_same(tmp_path: Path, dense: Path) -> None:
    compress_model(dense, tmp_path / "m", layers=["mlp", "qkv", "proj"], nblocks=4)
    report = densify_model(tmp_path / "m", tmp_path / "d")
    monarch, again = load_bundle(tmp_path / "m")[0], load_bundle(tmp_path / "d")[0]
    assert structure_of(again) == {}
    assert len(report.layers) == 8
    assert (logits(monarch) - logits(again)).abs().max() <= 1e-5
    assert report.parameters_after == sum(p.numel() for p in load_bundle(dense)[0].parameters())
    assert report.config.provenance["commands"][-1]["input_version"] == load_bundle(tmp_path / "m")[1].version


def test_projecting_a_densified_model_recovers_it(tmp_path: Path, dense: Path) -> None:
    compress_model(dense, tmp_path / "m", layers=["mlp"], nblocks=4)
    densify_model(tmp_path / "m", tmp_path / "d")
    report = compress_model(tmp_path / "d", tmp_path / "m2", layers=["mlp"], nblocks=4)
    assert max(layer.relative_error for layer in report.layers) < 1e-6
    first, second = load_bundle(tmp_path / "m")[0], load_bundle(tmp_path / "m2")[0]
    assert (logits(first) - logits(second)).abs().max() <= 1e-5


def test_what_is_monarch_already_is_kept(tmp_path: Path, dense: Path) -> None:
    compress_model(dense, tmp_path / "a", layers=["mlp"], nblocks=4)
    report = compress_model(tmp_path / "a", tmp_path / "b", layers=["qkv"], nblocks=2)
    config = report.config
    assert {layer.nblocks for name, layer in config.structure.items() if "mlp" in name} == {4}
    assert {layer.nblocks for name, layer in config.structure.items() if "qkv" in name} == {2}
    assert [step["command"] for step in config.provenance["commands"]] == ["import", "compress", "compress"]
    with pytest.raises(ValueError, match="is a Monarch layer already"):
        compress_model(tmp_path / "a", tmp_path / "c", layers=["mlp"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": ["nothing"]}, "layers 'nothing' selects no linear layer"),
        ({"layers": []}, "no layers selected"),
        (
            {"nblocks": 1},
            "layer blocks.0.mlp.fc1 would grow from 4096 to 5120 weights with nblocks 1, rank None",
        ),
        ({"nblocks": 33}, "layer blocks.0.mlp.fc1: nblocks 33 must be between 1 and 32"),
        ({"rank": 99}, "rank 99 must be between 1 and 8"),
        ({"rank": 8}, "would grow"),
    ],
)
def test_senseless_compression_is_refused(tmp_path: Path, dense: Path, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        compress_model(dense, tmp_path / "m", **options)
    assert message in str(caught.value)
    assert not (tmp_path / "m").exists()


def test_layers_that_save_nothing_are_warned_of(tmp_path: Path, dense: Path) -> None:
    report = compress_model(dense, tmp_path / "m", layers=["proj"], nblocks=2)
    assert report.parameters_after == report.parameters_before
    assert report.warnings == (
        "2 layers keep their number of weights and only lose accuracy, the first is blocks.0.attn.proj",
    )
    assert compress_model(dense, tmp_path / "n", layers=["proj"], nblocks=4).warnings == ()


def test_outputs_are_not_overwritten_unasked(tmp_path: Path, dense: Path) -> None:
    compress_model(dense, tmp_path / "m")
    with pytest.raises(BundleError, match="exists already"):
        compress_model(dense, tmp_path / "m")
    compress_model(dense, tmp_path / "m", nblocks=2, overwrite=True)
    assert {layer.nblocks for layer in load_bundle(tmp_path / "m")[1].structure.values()} == {2}


def test_densifying_a_dense_bundle_is_refused(tmp_path: Path, dense: Path) -> None:
    with pytest.raises(ValueError, match="every layer is dense already"):
        densify_model(dense, tmp_path / "d")


@pytest.mark.parametrize("bias", [True, False])
def test_densified_layer_computes_the_same(bias: bool) -> None:
    layer = MonarchLinear(30, 31, bias=bias, nblocks=4, dtype=torch.float64)
    x = torch.randn(5, 30, dtype=torch.float64)
    linear = densify_layer(layer)
    assert (linear.bias is not None) == bias
    assert (linear(x) - layer(x)).abs().max() < 1e-13
