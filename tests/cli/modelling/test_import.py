"""Tests what `milkweed import` takes, and the one clear line for everything that it cannot take."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from milkweed.models import create_model, load_bundle
from milkweed.models.layers.select import layer_specs_for, replace_linears, select_linears

from ...support.command import Refused

ARCH = "deit_tiny_patch16_224"
TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 4, "num_heads": 4}
FLYS = {"embed_dim": 768, "depth": 8, "num_heads": 8, "mlp_ratio": 3.0, "qkv_bias": False, "norm_eps": 1e-5}

State = dict[str, Tensor]


@pytest.fixture(scope="module")
def state() -> State:
    torch.manual_seed(0)
    return dict(create_model(ARCH, num_classes=3, **TINY).state_dict())


@pytest.fixture
def imports(tmp_path: Path, refused: Refused) -> Callable[..., str]:
    """Import a state that must be refused; what is said, without the file's name."""

    def call(state: State, *options: object) -> str:
        torch.save(state, tmp_path / "w.pth")
        arguments = ("--arch", ARCH, "--arch-args", json.dumps(TINY), *options)
        said = refused("import", tmp_path / "w.pth", tmp_path / "out", *arguments)
        assert not (tmp_path / "out").exists()
        return said.removeprefix(f"{tmp_path / 'w.pth'}: ")

    return call


def test_import_takes_arguments_and_preprocessing(milkweed: Any, tmp_path: Path, state: State) -> None:
    torch.save(state, tmp_path / "w.pth")
    (tmp_path / "images.json").write_text('{"mean": [0.5, 0.5, 0.5], "crop_pct": 1.0}')
    arguments = ("--arch", ARCH, "--arch-args", json.dumps(TINY), "--preprocess", tmp_path / "images.json")
    ran = milkweed("import", tmp_path / "w.pth", tmp_path / "out", *arguments, "--jpeg-scaling", "fast", "--json")
    assert (ran.code, ran.err) == (0, "")
    model, config = load_bundle(tmp_path / "out")
    assert all(torch.equal(tensor, state[key]) for key, tensor in model.state_dict().items())
    assert "JPEG scaling fast" in milkweed("inspect", tmp_path / "out").out
    assert config.preprocess == {
        "jpeg_scaling": "fast",
        "size": 32,
        "crop_pct": 1.0,
        "interpolation": "bicubic",
        "mean": [0.5, 0.5, 0.5],
        "std": [0.229, 0.224, 0.225],
    }
    assert (ran.document["monarch_layers"], ran.document["structured_layers"]) == (0, 0)


@pytest.mark.slow
def test_flys_vit_is_recognised_without_a_name(milkweed: Any, tmp_path: Path) -> None:
    """Its heads and eps are in no key: what is known of it makes it the model it was."""
    torch.manual_seed(0)
    model = create_model("vit_small_patch16_224", num_classes=3, **FLYS)
    names = select_linears(model, ["mlp"])
    replace_linears(model, layer_specs_for(model, names, "monarch", nblocks=16))
    weights = {f"model.{key}": tensor for key, tensor in model.state_dict().items()}
    torch.save({"state_dict": weights, "pytorch-lightning_version": "1.6.0"}, tmp_path / "last.ckpt")
    ran = milkweed("import", tmp_path / "last.ckpt", tmp_path / "out")
    assert ran.code == 0
    assert "arch    vit_small_patch16_224, 3 classes\n" in ran.out
    assert "images are prepared as HazyResearch/fly does, with the mean and deviation of ImageNet" in ran.out
    loaded, config = load_bundle(tmp_path / "out")
    assert config.arch_args == {"num_classes": 3, **FLYS}
    assert config.preprocess["mean"] == [0.485, 0.456, 0.406]
    assert {module.eps for module in loaded.modules() if isinstance(module, nn.LayerNorm)} == {1e-5}
    assert len(config.structure) == 16


def test_import_refuses_the_wrong_family(refused: Refused, tmp_path: Path, bundle: Path) -> None:
    path = bundle / "model.safetensors"  # of a ViTAE
    said = refused("import", path, tmp_path / "out", "--arch", ARCH)
    assert "this looks like a ViTAE v1 of depths (0, 0, 2), width 32: vitae_basic with arch_args" in said
    assert f"you asked for {ARCH}; 152 keys expected, " in said
    assert "first missing cls_token" in said


def test_import_refuses_a_part_of_a_checkpoint(imports: Callable[..., str], state: State) -> None:
    half = {key: tensor for key, tensor in state.items() if not key.startswith(("blocks.2.", "blocks.3.", "norm."))}
    said = imports(half)
    assert said == (
        f"a part of {ARCH}: what it holds fits, the rest is missing; 56 keys expected, 30 found, 30 in common; "
        "first missing blocks.2.norm1.weight (--debug says more)"
    )


@pytest.mark.parametrize("head", ["head_dist", "aux_head"])
def test_import_refuses_further_heads(
    milkweed: Any, imports: Callable[..., str], state: State, tmp_path: Path, head: str
) -> None:
    both = {**state, f"{head}.weight": torch.zeros(3, 32), f"{head}.bias": torch.zeros(3)}
    assert f"56 keys expected, 58 found, 56 in common; first unexpected '{head}.weight'" in imports(both)
    more = milkweed(
        "import", tmp_path / "w.pth", tmp_path / "out", "--arch", ARCH, "--arch-args", json.dumps(TINY), "--debug"
    )
    assert f"it has a further head, {head}, which {ARCH} has not" in more.err


def test_import_names_the_image_size_that_fits(imports: Callable[..., str], state: State) -> None:
    said = imports({**state, "pos_embed": torch.zeros(1, 26, 32)})
    assert "first of another shape pos_embed [1, 26, 32], not [1, 17, 32]" in said
    assert "; it fits with --arch-args '{\"img_size\": 40}'" in said


class Payload:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.target}",)


def test_import_runs_no_pickle_payload(imports: Callable[..., str], state: State, tmp_path: Path) -> None:
    said = imports({"state_dict": state, "args": Payload(tmp_path / "pwned")})  # type: ignore[dict-item]
    assert said == (
        "holds posix.system, which is not weights: refused, nothing in the file was run "
        "(save the state_dict alone with torch.save)"
    )
    assert not (tmp_path / "pwned").exists()
