"""Selecting, describing and replacing linear layers."""

import json

import pytest
import torch
from torch import nn

from milkweed.models.architectures.meta_init import on_meta
from milkweed.models.architectures.registry import create_model
from milkweed.models.layers.layer_spec import LayerSpec
from milkweed.models.layers.monarch import MonarchLinear
from milkweed.models.layers.select import build_layer, layer_specs_of, replace_linears, select_linears


def test_roles_select_normal_cells_only() -> None:
    with on_meta():
        vitae, vit = create_model("vitae_basic_tiny"), create_model("deit_tiny_patch16_224")
    assert select_linears(vitae, ["mlp"]) == [f"layers.2.NC.{i}.mlp.fc{j}" for i in range(7) for j in (1, 2)]
    assert select_linears(vitae, ["qkv"]) == [f"layers.2.NC.{i}.attn.qkv" for i in range(7)]
    assert select_linears(vit, ["proj"]) == [f"blocks.{i}.attn.proj" for i in range(12)]
    assert len(select_linears(vit, ["mlp", "qkv", "proj", "mlp"])) == 48


def test_names_and_patterns_select_in_the_models_order() -> None:
    with on_meta():
        vit = create_model("deit_tiny_patch16_224")
    assert select_linears(vit, ["head", "blocks.11.mlp.fc1"]) == ["blocks.11.mlp.fc1", "head"]
    assert select_linears(vit, ["blocks.1?.mlp.fc2"]) == ["blocks.10.mlp.fc2", "blocks.11.mlp.fc2"]


@pytest.mark.parametrize("layers", ["mpl", "layers.*", "blocks.12.mlp.fc1", "patch_embed.proj", ""])
def test_a_selector_that_finds_nothing_is_refused(layers: str) -> None:
    with on_meta():
        vit = create_model("deit_tiny_patch16_224")
    with pytest.raises(ValueError, match="selects no linear layer") as caught:
        select_linears(vit, ["mlp", layers])
    assert repr(layers) in str(caught.value)


def test_a_layer_spec_round_trips_through_json() -> None:
    layer = LayerSpec("monarch", 70, 50, nblocks=4, rank=3, bias=False)
    assert LayerSpec.from_dict(json.loads(json.dumps(layer.to_dict()))) == layer
    assert layer.weight_count == sum(p.numel() for p in build_layer(layer).parameters())
    assert layer.dense_weight_count == 3500


def test_replace_linears_builds_the_specified_layers_and_nothing_else() -> None:
    model = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 6, bias=False)).double().train()
    kept = model[0]
    specs = {"2": LayerSpec("monarch", 12, 6, nblocks=2, rank=1, bias=False)}
    assert replace_linears(model, specs) is model
    assert model[0] is kept
    layer = model[2]
    assert isinstance(layer, MonarchLinear)
    assert (layer.nblocks, layer.rank, layer.bias, layer.blkdiag1.dtype) == (2, 1, None, torch.float64)
    assert layer.training
    assert layer_specs_of(model) == specs


@pytest.mark.parametrize(
    ("name", "layer", "message"),
    [
        (
            "0",
            LayerSpec("monarch", 8, 16),
            "structure is for in_features 8, out_features 16, bias True; the model",
        ),
        ("0", LayerSpec("monarch", 8, 12, bias=False), "bias False"),
        ("1", LayerSpec("monarch", 8, 12), "is a GELU, not a dense linear layer"),
        ("7", LayerSpec("monarch", 8, 12), "no such layer"),
    ],
)
def test_a_spec_that_does_not_fit_is_refused_and_changes_nothing(name: str, layer: LayerSpec, message: str) -> None:
    model = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 6))
    with pytest.raises(ValueError, match="layer") as caught:
        replace_linears(model, {"2": LayerSpec("monarch", 12, 6, nblocks=2), name: layer})
    assert message in str(caught.value)
    assert layer_specs_of(model) == {}
