"""Models with layers of every kind: selected, built, counted, saved, imported, served, fused and made dense again."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from milkweed.models import bundle_to_dense, create_model, import_checkpoint, load_bundle, save_bundle
from milkweed.models.accounting import dense_equivalent_bytes, dense_equivalent_parameters, layer_accounts, macs
from milkweed.models.errors import CheckpointError
from milkweed.models.importing.layer_specs import layer_specs_in
from milkweed.models.layers.layer_spec import KINDS
from milkweed.models.layers.select import layer_specs_for, layer_specs_of, replace_linears, select_linears
from milkweed.models.layers.structured import StructuredLinear
from milkweed.models.projection.to_dense import to_dense
from milkweed.models.serving.fused.device_kernels import DeviceKernels
from milkweed.models.serving.prepare import (
    PackedLinear,
    PackedLowRank,
    PackedMlp,
    PackedPixelfly,
    prepare_for_inference,
)

from ..small_models import fused
from ..tiny import KIND_OPTIONS, config_of

ARCH = "deit_tiny_patch16_224"
WEIGHTS = {
    "monarch": 4 * 8 * 8 + 4 * 32 * 8,
    "lowrank": 5 * (32 + 128),
    "blockdiag": 32 * 128 // 4,
    "pixelfly": 32 * 128 // 2 + 4 * (32 + 128) + 32 + 1,
}
"""Parameters of fc1 in the tiny ViT, 32 -> 128, counted by hand."""

both = pytest.mark.parametrize("kind", KINDS)


def tiny(tiny_vit: dict[str, Any], kind: str, layers: tuple[str, ...] = ("mlp",), **options: Any) -> nn.Module:
    """A ViT with layers of a kind and weights that every mistake would show in."""
    torch.manual_seed(0)
    model = create_model(ARCH, num_classes=3, **tiny_vit)
    replace_linears(
        model, layer_specs_for(model, select_linears(model, layers), kind, **{**KIND_OPTIONS[kind], **options})
    )
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval().requires_grad_(False)


def images(count: int = 2) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@both
def test_parts_of_a_structured_layer_are_not_selected(tiny_vit: dict[str, Any], kind: str) -> None:
    model = tiny(tiny_vit, kind)
    assert not any(".mlp." in name for name in select_linears(model, ["blocks.*"]))
    assert len(layer_accounts(model)) == 9
    with pytest.raises(ValueError, match=r"blocks.0.mlp.fc1 is a [A-Za-z-]+ layer already"):
        select_linears(model, ["mlp"])


@both
def test_accounts_count_structured_layers(tiny_vit: dict[str, Any], kind: str) -> None:
    model = tiny(tiny_vit, kind)
    dense = create_model(ARCH, num_classes=3, **tiny_vit)
    accounts = {row.name: row for row in layer_accounts(model, 32)}
    account, head = accounts["blocks.0.mlp.fc1"], accounts["head"]
    assert (head.kind, head.parameters, head.dense_parameters, head.macs, head.dense_macs) == ("dense", 99, 99, 96, 96)
    assert (account.dense_macs, macs(model, 32).dense_equivalent) == (17 * 32 * 128, macs(dense, 32).total)
    assert (account.kind, account.in_features, account.out_features) == (kind, 32, 128)
    assert (account.parameters, account.dense_parameters) == (WEIGHTS[kind] + 128, 32 * 128 + 128)
    assert account.macs == 17 * (WEIGHTS[kind] - (kind == "pixelfly"))  # a gate's bias is no product
    assert macs(model, 32) == macs(copy.deepcopy(model).to("meta"), 32)
    assert dense_equivalent_parameters(model) == sum(p.numel() for p in dense.parameters())
    assert dense_equivalent_bytes(model.double()) == 8 * dense_equivalent_parameters(model)


@pytest.mark.parametrize("gating", [True, False])
@both
def test_the_serving_form_computes_the_same(tiny_vit: dict[str, Any], kind: str, gating: bool) -> None:
    model = tiny(tiny_vit, kind, ("mlp", "qkv"), **({"gating": gating} if kind == "pixelfly" else {}))
    want = model(images())
    served = prepare_for_inference(copy.deepcopy(model))
    got = served(images())
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    kinds = [type(module) for module in served.modules()]
    packed = {PackedMlp: 0, PackedLinear: 0, PackedLowRank: 0, PackedPixelfly: 0}
    packed |= {"monarch": {PackedMlp: 2, PackedLinear: 2 + 2 * 2}, "lowrank": {PackedLowRank: 6}, "blockdiag": {}}.get(
        kind, {PackedPixelfly: 6}
    )
    assert {form: kinds.count(form) for form in packed} == packed
    half = prepare_for_inference(copy.deepcopy(model), dtype=torch.bfloat16)(images().bfloat16())
    assert (half.float() - want).norm() / want.norm() < 5e-2


@pytest.mark.parametrize(
    "options",
    [
        {"rank": 0, "gating": False},
        {"rank": 0, "gating": False, "n_factors": 0, "global_size": 5},
        {"rank": 3, "n_factors": 0, "global_size": 5},
    ],
)
def test_a_block_sparse_layer_is_served_and_made_dense(tiny_vit: dict[str, Any], options: dict[str, Any]) -> None:
    model = tiny(tiny_vit, "pixelfly", **options)
    want = model(images())
    served = prepare_for_inference(copy.deepcopy(model))
    torch.testing.assert_close(served(images()), want, rtol=1e-4, atol=1e-5)
    if not options["rank"]:
        for name in layer_specs_of(model):
            model.set_submodule(name, to_dense(model.get_submodule(name)))
        torch.testing.assert_close(model(images()), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["lowrank", "blockdiag", "pixelfly"])
def test_the_fused_form_computes_the_same_or_reports_a_fallback(tiny_vit: dict[str, Any], kind: str) -> None:
    model = tiny(tiny_vit, kind, ("mlp", "qkv"))
    want = model(images())
    served, report = fused(model, batch_sizes=(2,), kernels=DeviceKernels("none", "no kernels here"))
    torch.testing.assert_close(served(images()), want, rtol=1e-4, atol=1e-5)
    reasons = [fallback.reason for fallback in report.fallbacks if fallback.kind == "block"]
    if kind == "pixelfly":
        assert reasons[0] == "Block: a linear layer is a PixelflyLinear"
    else:
        layer = {"lowrank": "monarch(32>128,1x5x32,1x128x5", "blockdiag": "blockdiag(32>128,4"}[kind]
        assert not reasons
        assert any(layer in part.shapes for part in report.parts)


@both
def test_densify_gives_the_dense_layers_that_compute_the_same(
    tmp_path: Path, tiny_vit: dict[str, Any], kind: str
) -> None:
    model = tiny(tiny_vit, kind, **({"gating": False} if kind == "pixelfly" else {}))
    saved = save_bundle(tmp_path / "b", model, config_of(model, ARCH, tiny_vit, 3))
    report = bundle_to_dense(tmp_path / "b", tmp_path / "d")
    dense, config = load_bundle(tmp_path / "d")
    assert (config, config.structure) == (report.config, {})
    assert config.provenance["commands"][-1]["input_version"] == saved.version
    assert report.parameters_after == sum(parameter.numel() for parameter in dense.parameters())
    assert report.parameters_before == sum(parameter.numel() for parameter in model.parameters())
    assert report.layers == tuple(layer_specs_of(model))
    assert not any(isinstance(module, StructuredLinear) for module in dense.modules())
    torch.testing.assert_close(dense(images()), model(images()), rtol=1e-4, atol=1e-5)


def test_densify_names_the_layer_that_cannot_be_dense(tmp_path: Path, tiny_vit: dict[str, Any]) -> None:
    model = tiny(tiny_vit, "pixelfly")
    save_bundle(tmp_path / "b", model, config_of(model, ARCH, tiny_vit, 3))
    with pytest.raises(ValueError, match=r"layer blocks.0.mlp.fc1: a Pixelfly layer whose gate depends on the input"):
        bundle_to_dense(tmp_path / "b", tmp_path / "d")
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("kind", ["lowrank", "blockdiag", "pixelfly"])
def test_a_checkpoints_layers_are_recognised(tmp_path: Path, tiny_vit: dict[str, Any], kind: str) -> None:
    model = tiny(tiny_vit, kind, ("mlp", "qkv"), **({"shuffle": False} if kind == "blockdiag" else {}))
    state = model.state_dict()
    for name, layer in model.named_modules():
        if kind == "pixelfly" and isinstance(layer, StructuredLinear):
            state[f"{name}.sparse.layout"] = layer.sparse.shape.layout().int()  # as fly has it
    torch.save(state, tmp_path / "x.pth")
    report = import_checkpoint(tmp_path / "x.pth", ARCH, tmp_path / "b", arch_args=tiny_vit)
    loaded, config = load_bundle(tmp_path / "b")
    assert torch.equal(loaded(images()), model(images()))
    assert config.structure == layer_specs_of(model)
    said = {"lowrank": "6 low-rank layers", "blockdiag": "6 block-diagonal layers", "pixelfly": "6 Pixelfly layers"}
    assert any(said[kind] in note for note in report.notes)
    assert any("taken as not" in note for note in report.notes) == (kind == "blockdiag")


def fly_layer(shared: Path) -> tuple[nn.Module, dict[str, Tensor]]:
    """fc1 of fly's tiny Pixelfly ViT, and a model with a dense layer in its place."""
    with np.load(shared / "golden" / "fly_models.npz") as data:
        prefix = "vit_fbbflylr/sd.blocks.0.mlp."
        state = {
            key.removeprefix(prefix): torch.from_numpy(data[key]) for key in data if key.startswith(prefix + "fc1")
        }
    return nn.ModuleDict({"fc1": nn.Linear(32, 128)}), state


def test_flys_layout_decides_the_butterfly(shared: Path) -> None:
    model, state = fly_layer(shared)
    (layer,) = layer_specs_in("x", model, state).values()
    assert layer.options == {"rank": 8, "block_size": 4, "butterfly_size": 4} | {
        "n_factors": 2,
        "gating": True,
        "global_size": 0,
    }
    del state["fc1.gate.weight"], state["fc1.gate.bias"]
    assert not layer_specs_in("x", model, state)["fc1"].gating


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s["fc1.sparse.layout"].view(-1)[:2].copy_(torch.tensor([0, 1])), "are no Pixelfly layer of 32 inp"),
        (lambda s: s.update({"fc1.sparse.weight": torch.zeros(192, 4, 5)}), "are no Pixelfly layer of 32 inputs and 1"),
        (lambda s: s.update({"fc1.low_rank.lr_weight2": torch.zeros(128, 7)}), "are no Pixelfly layer of 32 inputs"),
        (
            lambda s: (
                s.clear(),
                s.update({"fc1.lr_weight1": torch.zeros(5, 32), "fc1.lr_weight2": torch.zeros(9, 5)}),
            ),
            r"lr_weight1 [5, 32] and lr_weight2 [9, 5] are no low-rank layer of 32 inputs and 128 outputs",
        ),
        (
            lambda s: (s.clear(), s.update({"fc1.weight": torch.zeros(4, 8, 8)})),
            "weight [4, 8, 8] are no block-diagonal layer of 32 inputs and 128 outputs",
        ),
    ],
)
def test_tensors_that_fit_no_structured_layer_are_refused(shared: Path, change: Any, message: str) -> None:
    model, state = fly_layer(shared)
    change(state)
    with pytest.raises(CheckpointError, match=r"^x: fc1\.[^\n]*$") as caught:
        layer_specs_in("x", model, state)
    assert message in str(caught.value)


def test_without_a_layout_only_an_unambiguous_butterfly_is_taken(shared: Path) -> None:
    model, state = fly_layer(shared)
    del state["fc1.sparse.layout"]  # 192 of 256 blocks are kept: only B = 4, f = 2 does that
    assert layer_specs_in("x", model, state)["fc1"].butterfly_size == 4
    state["fc1.sparse.weight"] = torch.zeros(128, 4, 4)  # a half: B = 4, f = 1 and B = 8, f = 3
    with pytest.raises(CheckpointError, match="are no Pixelfly layer"):
        layer_specs_in("x", model, state)
