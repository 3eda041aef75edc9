"""Int8 weights in memory: a quarter of the bytes, and the bits of the same weights expanded on loading."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from milkweed.jobs.quantisation import choose_storage
from milkweed.models import create_model, load_bundle, resident_bytes, save_bundle
from milkweed.models.bundle.storage import as_stored, storable_weights
from milkweed.models.layers.layer_spec import KINDS
from milkweed.models.layers.select import layer_specs_for, replace_linears, select_linears
from milkweed.models.serving.prepare import prepare_for_inference
from milkweed.models.serving.torchscript import torchscript_forward

from ..tiny import KIND_OPTIONS, TINY_VIT, TINY_VITAE_V2, config_of


def rounded(tiny_vit: dict[str, Any], kind: str, bias: bool = True) -> tuple[nn.Module, tuple[str, ...]]:
    """A ViT with MLPs of a kind as it is read from int8, and the names of its layers."""
    torch.manual_seed(0)
    model = create_model("deit_tiny_patch16_224", num_classes=3, **tiny_vit)
    if kind != "dense":
        replace_linears(model, layer_specs_for(model, select_linears(model, ["mlp"]), kind, **KIND_OPTIONS[kind]))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    if not bias:
        for name in select_linears(model, ["qkv", "proj"]):
            model.get_submodule(name).bias = None
    layers = tuple(storable_weights(model))
    model = as_stored(model.eval().requires_grad_(False), dict.fromkeys(layers, "int8"))
    return model, layers


def images(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["dense", *KINDS])
@pytest.mark.slow_beyond(3)
def test_int8_layers_give_the_same_bits_as_weights_expanded_on_loading(
    tiny_vit: dict[str, Any], kind: str, dtype: torch.dtype
) -> None:
    model, layers = rounded(tiny_vit, kind)
    expanded = prepare_for_inference(copy.deepcopy(model), dtype=dtype)
    held = prepare_for_inference(model, dtype=dtype, int8_layers=layers)
    with torch.inference_mode():
        want = expanded(images(dtype))
        assert torch.equal(held(images(dtype)), want)
        forward = torchscript_forward(held, (2, 3, 32, 32), dtype)
        assert torch.equal(forward(images(dtype)), want)


@pytest.mark.parametrize("kind", ["monarch", "lowrank"])
def test_memory_holds_one_byte_a_weight(tiny_vit: dict[str, Any], kind: str) -> None:
    model, layers = rounded(tiny_vit, kind)
    weights = [model.get_parameter(key) for keys in storable_weights(model).values() for key in keys]
    count = sum(weight.numel() for weight in weights)
    channels = sum(weight.shape[0] if weight.dim() == 4 else weight.numel() // weight.shape[-1] for weight in weights)
    whole = resident_bytes(prepare_for_inference(copy.deepcopy(model)))
    held = prepare_for_inference(model, int8_layers=layers)
    assert whole - resident_bytes(held) == 3 * count - 4 * channels  # a float32 scale for each channel
    with torch.inference_mode():
        held(images())
    assert whole - resident_bytes(held) == 3 * count - 4 * channels  # nothing is kept of what was expanded


def test_layers_that_are_not_int8_stay_as_they_are(tiny_vit: dict[str, Any]) -> None:
    model, _ = rounded(tiny_vit, "monarch", bias=False)
    expanded = prepare_for_inference(copy.deepcopy(model))
    held = prepare_for_inference(model, int8_layers=("blocks.0.mlp.fc2", "blocks.1.attn.qkv"))
    dtypes = {name: tensor.dtype for name, tensor in (*held.named_parameters(), *held.named_buffers())}
    assert sorted(name for name, dtype in dtypes.items() if dtype == torch.int8) == [
        "blocks.0.mlp.fc2.parametrizations.w1.original",
        "blocks.0.mlp.fc2.parametrizations.w2.original",
        "blocks.1.attn.qkv.parametrizations.weight.original",
    ]
    with torch.inference_mode():
        assert torch.equal(held(images()), expanded(images()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_convolutions_with_a_folded_norm_stay_int8(tiny_vitae: dict[str, Any], dtype: torch.dtype) -> None:
    """Folding scales each filter: the int8 values stay, and the scales take it up, in float32 whatever the dtype."""
    torch.manual_seed(0)
    model = create_model("vitae_basic", num_classes=5, **tiny_vitae).eval().requires_grad_(False)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -1, 1)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 2)
    layers = tuple(storable_weights(model))
    model = as_stored(model, dict.fromkeys(layers, "int8"))
    expanded = prepare_for_inference(copy.deepcopy(model), dtype=dtype)
    held = prepare_for_inference(model, dtype=dtype, int8_layers=layers)
    assert resident_bytes(held) < (0.5 if dtype == torch.float32 else 0.9) * resident_bytes(expanded)
    for name in layers:
        found, want = held.get_submodule(name).weight, expanded.get_submodule(name).weight
        # Where a product of float32 lies between two numbers of bfloat16, either is right; that is rare.
        torch.testing.assert_close(found, want, rtol=1e-6 if dtype == torch.float32 else 2**-7, atol=0)
        assert dtype == torch.float32 or float((found != want).double().mean()) < 0.01
    with torch.inference_mode():
        tolerance = 1e-5 if dtype == torch.float32 else 0.05
        torch.testing.assert_close(held(images(dtype)), expanded(images(dtype)), rtol=tolerance, atol=tolerance)


SPARSE: dict[str, Any] = {"block_size": 4, "butterfly_size": 4, "gating": False}
FAMILIES: dict[str, tuple[str, dict[str, Any], str, list[str], dict[str, Any]]] = {
    "ViTAE, Monarch of a rank": ("vitae_basic", {}, "monarch", ["mlp", "qkv"], {"nblocks": 2, "rank": 1}),
    "ViTAE, low rank": ("vitae_basic", {}, "lowrank", ["mlp"], {"rank": 3}),
    "ViTAEv2": ("vitaev2_s", TINY_VITAE_V2, "dense", [], {}),
    "T2T-ViT": ("t2t_vit_7", {"img_size": 32, "embed_dim": 16, "depth": 1, "num_heads": 2}, "dense", [], {}),
    "ViT, padded Monarch": ("deit_tiny_patch16_224", TINY_VIT, "monarch", ["mlp", "qkv"], {"nblocks": 5}),
    "fly's ViT, Pixelfly": (
        "vit_small_patch16_224",
        {**TINY_VIT, "separate_qkv": True, "norm_eps": 1e-5},
        "pixelfly",
        ["mlp", "qkv", "proj"],
        {**SPARSE, "rank": 4, "n_factors": 1},
    ),
    "fly's ViT, sparse alone": (
        "vit_small_patch16_224",
        {**TINY_VIT, "separate_qkv": True},
        "pixelfly",
        ["qkv"],
        {**SPARSE, "rank": 0, "global_size": 4},
    ),
    "BEiT": ("beit_base_patch16_224", TINY_VIT, "dense", [], {}),
    "Swin": (
        "swin_tiny_patch4_window7_224",
        {"img_size": 32, "window_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [1, 2]},
        "dense",
        [],
        {},
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.slow_beyond(3)
def test_an_int8_bundle_of_each_family_is_served(tmp_path: Path, tiny_vitae: dict[str, Any], family: str) -> None:
    """Every layer of it is tried, stored and read as int8, and served as if it had been expanded."""
    arch, args, kind, layers, options = FAMILIES[family]
    args = args or tiny_vitae
    torch.manual_seed(0)
    model = create_model(arch, num_classes=3, **args)
    if layers:
        replace_linears(model, layer_specs_for(model, select_linears(model, layers), kind, **options))
    model = model.eval().requires_grad_(False)
    found = choose_storage(model, "int8", None, 32, limit=0.05)
    assert not found.kept
    save_bundle(tmp_path / "b", model, config_of(model, arch, args, 3), storage=found.storage)
    loaded, read = load_bundle(tmp_path / "b")
    expanded = prepare_for_inference(copy.deepcopy(loaded))
    held = prepare_for_inference(copy.deepcopy(loaded), int8_layers=read.int8_layers)
    assert resident_bytes(held) < resident_bytes(expanded)  # by little where most is Pixelfly, which is expanded
    with torch.inference_mode():
        want = loaded(images())
        torch.testing.assert_close(held(images()), expanded(images()), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(held(images()), want, rtol=1e-4, atol=1e-4)
    moved = [name for name, tensor in loaded.state_dict().items() if not torch.equal(tensor, model.state_dict()[name])]
    assert set(moved) == {key for keys in storable_weights(model).values() for key in keys}
