"""Whole models of HazyResearch/fly, in its Lightning checkpoints, give the logits that fly gives."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from milkweed.models import create_model, import_checkpoint, load_bundle
from milkweed.models.architectures.meta_init import on_meta
from milkweed.models.importing.families import detect_family
from milkweed.models.serving.prepare import prepare_for_inference

VIT: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}
MIXER: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_blocks": 2}
T2T: dict[str, Any] = {"img_size": 64, "embed_dim": 32, "depth": 2, "num_heads": 4, "mlp_ratio": 2, "token_dim": 16}


@dataclass(frozen=True)
class Case:
    """What one of fly's models is here, and how many layers of it are structured."""

    arch: str
    arch_args: dict[str, Any]
    layers: int


CASES = {
    "vit_monarch_mlp": Case("vit_base_patch16_224", VIT, 4),
    "vit_monarch_mlp_attn": Case(
        "vit_base_patch16_224", {**VIT, "mlp_ratio": 3, "qkv_bias": False, "separate_qkv": True}, 10
    ),
    "vit_fbbflylr": Case("vit_base_patch16_224", {**VIT, "depth": 1, "separate_qkv": True}, 5),
    "mixer_monarch": Case("mixer_s16_224", MIXER, 4),
    "mixer_monarch_both": Case("mixer_s16_224", MIXER, 8),
    "t2tvit_performer_monarch": Case("t2t_vit_7", T2T, 4),
    "t2tvit_transformer_monarch": Case("t2t_vit_t_14", T2T, 4),
    "t2tvit_transformer_fullattncfg": Case("t2t_vit_t_14", T2T, 4),
}


@pytest.fixture(scope="module")
def golden(shared: Path) -> dict[str, np.ndarray]:
    with np.load(shared / "golden" / "fly_models.npz") as data:
        return dict(data)


def test_the_cases_are_all_there(golden: dict[str, np.ndarray]) -> None:
    assert {key.partition("/")[0] for key in golden} == CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_logits_are_flys(tmp_path: Path, golden: dict[str, np.ndarray], name: str) -> None:
    case = CASES[name]
    prefix = f"{name}/sd."
    state = {key.removeprefix(prefix): torch.from_numpy(a) for key, a in golden.items() if key.startswith(prefix)}
    weights = {f"model.{key}": tensor for key, tensor in state.items()}
    torch.save({"state_dict": weights, "pytorch-lightning_version": "1.6.0"}, tmp_path / "last.ckpt")
    import_checkpoint(tmp_path / "last.ckpt", case.arch, tmp_path / "b", arch_args=case.arch_args)
    model, config = load_bundle(tmp_path / "b")
    assert len(config.structure) == case.layers
    x, want = torch.from_numpy(golden[f"{name}/x"]), torch.from_numpy(golden[f"{name}/y"])
    with torch.inference_mode():
        torch.testing.assert_close(model(x), want, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(prepare_for_inference(model)(x), want, rtol=1e-5, atol=1e-5)


def meta_state(arch: str, **arch_args: Any) -> dict[str, Tensor]:
    with on_meta():
        return create_model(arch, **arch_args).state_dict()


def test_flys_vits_are_recognised_with_arguments_that_keys_do_not_show() -> None:
    """768 wide and 8 deep is the older ViT-S: its eps and heads are known, whether or not q, k and v are separate."""
    small = {"embed_dim": 768, "depth": 8, "num_heads": 8, "mlp_ratio": 3.0, "qkv_bias": False, "norm_eps": 1e-5}
    for separate in ({}, {"separate_qkv": True}):
        family = detect_family(meta_state("vit_small_patch16_224", **small, **separate))
        assert family.candidates == ("vit_small_patch16_224",)
        assert dict(family.arch_args) == {**small, **separate}
        assert family.preprocess["mean"] == [0.485, 0.456, 0.406]
        with on_meta():
            model = create_model("vit_small_patch16_224", **family.arch_args)
        assert {m.eps for m in model.modules() if isinstance(m, torch.nn.LayerNorm)} == {1e-5}
    base = detect_family(meta_state("vit_base_patch16_224", separate_qkv=True))
    assert base.candidates == ("vit_base_patch16_224", "deit_base_patch16_224")
    assert dict(base.arch_args) == {"separate_qkv": True}
    assert base.preprocess["mean"] == [0.485, 0.456, 0.406]
    assert not detect_family(meta_state("vit_base_patch16_224")).preprocess


def test_parameters_are_those_that_fly_counts() -> None:
    """The dense ViT-S has 48.75 M of them; with Monarch layers of four blocks it has as many as fly's."""
    from milkweed.models import layer_specs_for, select_linears

    small = {"embed_dim": 768, "depth": 8, "num_heads": 8, "mlp_ratio": 3.0, "qkv_bias": False, "norm_eps": 1e-5}
    wanted = {"mlp": 29.88, "mlp,qkv": 22.80}
    with on_meta():
        model = create_model("vit_small_patch16_224", **small, separate_qkv=True)
        assert round(sum(p.numel() for p in model.parameters()) / 1e6, 2) == 48.75
        for layers, millions in wanted.items():
            specs = layer_specs_for(model, select_linears(model, layers.split(",")))
            counted = create_model("vit_small_patch16_224", **small, separate_qkv=True, layer_specs=specs)
            assert round(sum(p.numel() for p in counted.parameters()) / 1e6, 2) == millions
