"""Programs for the CPU kernels answer as torch does: ViT and ViTAE, dense and Monarch, in bfloat16 and in int8."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from milkweed.kernels.cpu.reference import evaluate
from milkweed.models import create_model
from milkweed.models.architectures.token_blocks import apply_token_plan
from milkweed.models.bundle.storage import as_stored
from milkweed.models.errors import ExportError
from milkweed.models.layers.layer_spec import LayerSpec
from milkweed.models.layers.select import replace_linears
from milkweed.models.layers.token_plan import TokenMerging, TokenPlan
from milkweed.models.programs import session
from milkweed.models.programs.from_model import program_of
from milkweed.models.programs.int8 import calibrate, int8_program, int8_storage
from milkweed.models.programs.session import ProgramSession, kernels_refusal
from milkweed.models.serving.fused.chains import NotFusable

ARGS = {"num_classes": 7, "embed_dim": 64, "depth": 4, "num_heads": 4, "img_size": 40, "patch_size": 8}
VITAE = {
    "num_classes": 7,
    "img_size": 40,
    "embed_dims": (16, 16, 32),
    "token_dims": (32, 16, 64),
    "downsample": (4, 2, 2),
    "depths": (0, 0, 2),
    "num_heads": (1, 1, 4),
    "mlp_ratio": 2,
    "groups": (1, 1, 16),
}
PATCHES = {
    "reductions": ("embedding", "none", "none"),
    "embed_dims": (64, 64, 64),
    "token_dims": (64, 64, 64),
    "downsample": (8, 1, 1),
    "shallow": True,
}
MERGING = TokenMerging(1, 1, 0.4, 0.1)

needs_library = pytest.mark.skipif(kernels_refusal() is not None, reason=str(kernels_refusal()))


def vit(plan: TokenPlan | None = None, arch: str = "deit_tiny_patch16_224", **arguments: Any) -> nn.Module:
    torch.manual_seed(0)
    model = create_model(arch, **{**ARGS, **arguments}).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            parameter.mul_(20 if name.startswith("head") else 5)
        elif "norm" in name:
            parameter.add_(0.3 * torch.randn_like(parameter))
    return apply_token_plan(model, plan or TokenPlan())


MODELS = {
    "dense": lambda: vit(),
    "layer scale": lambda: vit(init_values=0.5),
    "no bias of qkv": lambda: vit(qkv_bias=False),
    "class token last": lambda: vit(TokenPlan(class_last=True)),
    "positions of patches alone": lambda: vit(no_embed_class=True),
    "registers": lambda: vit(TokenPlan(MERGING, class_last=True), reg_tokens=3),
    "merging": lambda: vit(TokenPlan(MERGING, class_last=True)),
    "mean, fc_norm": lambda: vit(global_pool="avg"),
    "norm, mean": lambda: vit(global_pool="avg", fc_norm=False),
    "class token, fc_norm": lambda: vit(fc_norm=True),
    "mean without class token": lambda: vit(global_pool="avg", class_token=False, reg_tokens=2),
    "class token beside mean": lambda: vit(global_pool="token_avg", reg_tokens=2),
    "attention pooling": lambda: vit(global_pool="map", class_token=False),
    "attention pooling, QuickGELU": lambda: vit(global_pool="map", class_token=False, act_layer="quick_gelu"),
    "attention pooling, heads of 20": lambda: vit(global_pool="map", class_token=False, embed_dim=80),
    "no last norm": lambda: vit(final_norm=False),
    "heads of 20": lambda: vit(embed_dim=80),
    "heads of 20, class token last": lambda: vit(TokenPlan(MERGING, class_last=True), embed_dim=80),
    "two class tokens": lambda: vit(arch="deit_tiny_distilled_patch16_224"),
    "CLIP": lambda: vit(pre_norm=True, act_layer="quick_gelu", init_values=0.5),
    "CLIP, Monarch": lambda: structured(vit(pre_norm=True, act_layer="quick_gelu"), "monarch"),
    "SiLU": lambda: vit(act_layer="silu"),
    "Monarch": lambda: structured(vit(), "monarch"),
    "block-diagonal": lambda: structured(vit(), "blockdiag", shuffle=True),
    "ViTAE": lambda: vitae(),
    "ViTAE in few groups": lambda: vitae(groups=(1, 1, 4)),
    "ViTAE, Monarch": lambda: structured(vitae(), "monarch"),
    "ViTAE with class token": lambda: vitae(**PATCHES),
}


def vitae(**arguments: Any) -> nn.Module:
    torch.manual_seed(0)
    model = create_model("vitae_basic", **{**VITAE, **arguments}).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            parameter.add_(0.2 * torch.randn_like(parameter))
        elif parameter.dim() == 2 and not name.endswith(".w"):
            parameter.mul_(20 if name == "head.weight" else 5)
    for name, buffer in model.named_buffers():
        if "running" in name:
            buffer.add_(0.2 * torch.rand_like(buffer))
    return model


def structured(model: nn.Module, kind: str, **options: Any) -> nn.Module:
    names = {
        name: LayerSpec(kind, layer.in_features, layer.out_features, nblocks=4, **options)
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and name != "head"
    }
    return replace_linears(model, names).eval().requires_grad_(False)


def images(count: int) -> Tensor:
    return torch.randn(count, 3, 40, 40, generator=torch.Generator().manual_seed(1))


def divergence(dense: Tensor, logits: Any) -> float:
    p, q = (torch.as_tensor(values).double().softmax(-1) for values in (dense, logits))
    return float((p * (p / q).log()).sum(-1).mean())


@pytest.mark.parametrize("name", MODELS)
def test_the_program_is_the_model(name: str) -> None:
    model = MODELS[name]()
    found = evaluate(program_of(model, 40), images(3).double().numpy())
    expected = model.double()(images(3).double())
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-4)


def test_gelu_by_tanh_is_taken_for_gelu() -> None:
    model = vit(act_layer="gelu_tanh")
    found = evaluate(program_of(model, 40), images(3).double().numpy())
    np.testing.assert_allclose(found, model.double()(images(3).double()).numpy(), atol=0.01)


@needs_library
@pytest.mark.parametrize("name", MODELS)
def test_the_kernels_answer_as_torch_does(name: str) -> None:
    model = MODELS[name]()
    pixels, expected = images(32), MODELS[name]()(images(32))
    assert divergence(expected, ProgramSession(program_of(model, 40))(pixels)) < 0.002
    activations = calibrate(model, 40, pixels.split(8))
    stored = as_stored(model, int8_storage(model, activations))
    assert divergence(expected, ProgramSession(int8_program(stored, 40, activations))(pixels)) < 0.02


def test_what_the_kernels_do_not_compute_is_named() -> None:
    for model, said in (
        (vit(global_pool="max"), "its head pools by 'max'"),
        (vit(global_pool="map"), "leaves out tokens in front of the patches"),
        (vit(global_pool="prr", class_token=False), "no rule for pooling by AttentionPoolPrr"),
        (vit(TokenPlan(TokenMerging(1, 1, 0.4)), global_pool="avg"), "counts merged tokens by their sizes"),
        (vit(qk_norm=True), "attn.q_norm is a LayerNorm"),
        (create_model("vitaev2_s", num_classes=3).eval(), "there is no program for ViTAEv2"),
        (apply_token_plan(vitae(), TokenPlan(TokenMerging(0, 1, 0.4))), "it merges tokens"),
        (vitae(**PATCHES, img_size=48), "it has positions for images of 48 px, not 40"),
        (create_model("mixer_s32_224", num_classes=3).eval(), "there is no program for MlpMixer"),
    ):
        with pytest.raises(NotFusable, match=said):
            program_of(model, 40)


def test_activations_of_another_model_are_refused() -> None:
    activations = dict(calibrate(vit(), 40, [images(2)]))
    with pytest.raises(ValueError, match=r"activations of blocks\.3\.attn\.proj: 64 channels, not any"):
        int8_program(vit(depth=3), 40, activations)
    del activations["blocks.2.mlp.fc2"]
    with pytest.raises(ValueError, match=r"activations of blocks\.2\.mlp\.fc2: no channels, not 256"):
        int8_program(vit(), 40, activations)


@needs_library
def test_sizes_that_the_kernels_do_not_take_are_an_error_of_the_session() -> None:
    with pytest.raises(ExportError, match="40 channels: the kernels take multiples of 16"):
        ProgramSession(program_of(vit(embed_dim=40, num_heads=1), 40))


def test_without_the_library_the_refusal_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise session.CpuLibraryError("the CPU kernels are not built: make cpu-kernels")

    monkeypatch.setattr(session, "fastest_set", missing)
    assert kernels_refusal() == "the CPU kernels are not built: make cpu-kernels"
    with pytest.raises(ExportError, match="not built"):
        ProgramSession(program_of(vit(), 40))
