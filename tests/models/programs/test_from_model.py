"""Programs for the CPU kernels answer as torch does: ViT and ViTAE, dense and Monarch, in bfloat16 and in int8."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import timm
import torch
from timm.layers import SwiGLUPacked
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
SWIGLU: dict[str, Any] = {"mlp_layer": SwiGLUPacked, "act_layer": "silu"}
MERGING = TokenMerging(1, 1, 0.4, 0.1)

needs_library = pytest.mark.skipif(kernels_refusal() is not None, reason=str(kernels_refusal()))


def vit(plan: TokenPlan | None = None, arch: str = "deit_tiny_patch16_224", **arguments: Any) -> nn.Module:
    torch.manual_seed(0)
    return apply_token_plan(spread(create_model(arch, **{**ARGS, **arguments})), plan or TokenPlan())


def of_timm(arch: str, embed: bool = True, **arguments: Any) -> nn.Module:
    """A model with arguments that users of milkweed cannot give; without `embed` its sizes are not those of ARGS."""
    torch.manual_seed(0)
    return spread(timm.create_model(arch, **{**(ARGS if embed else {"num_classes": 7}), **arguments}))


def swin(arch: str = "swin_tiny_patch4_window7_224", **arguments: Any) -> nn.Module:
    sizes = {"img_size": 40, "patch_size": 5, "embed_dim": 32, "depths": (2, 2), "num_heads": (1, 2), "window_size": 4}
    return of_timm(arch, embed=False, **{**sizes, **arguments})


def spread(model: nn.Module) -> nn.Module:
    """The model with answers that are not flat."""
    model.eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            parameter.mul_(20 if name.startswith("head") else 5)
        elif "norm" in name or "grn" in name:
            parameter.add_(0.3 * torch.randn_like(parameter))
        elif "bias_table" in name or "gamma" in name:
            parameter.add_(torch.randn_like(parameter).abs())
    return model


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
    "norms of queries and keys": lambda: vit(qk_norm=True, init_values=0.5),
    "norms inside": lambda: of_timm("vit_tiny_patch16_224", scale_attn_norm=True, scale_mlp_norm=True),
    "RMSNorm": lambda: of_timm("vit_tiny_patch16_224", norm_layer="rmsnorm", qk_norm=True),
    "a norm of patches": lambda: of_timm("aimv2_large_patch14_224", patch_size=16),
    "SwiGLU, packed": lambda: of_timm(
        "vit_tiny_patch16_224", mlp_layer=SwiGLUPacked, act_layer="silu", mlp_ratio=3.125
    ),
    "gate last": lambda: of_timm(
        "vit_tiny_patch16_224", mlp_layer=partial(SwiGLUPacked, gate_last=True), act_layer="silu"
    ),
    "BEiT": lambda: of_timm("beit_base_patch16_224", init_values=0.5),
    "BEiT, biases of all blocks": lambda: of_timm(
        "beit_base_patch16_224", use_shared_rel_pos_bias=True, use_rel_pos_bias=False, use_abs_pos_emb=True
    ),
    "BEiT, both biases": lambda: of_timm("beit_base_patch16_224", use_shared_rel_pos_bias=True),
    "BEiT, SwiGLU": lambda: of_timm("beit_base_patch16_224", swiglu_mlp=True, scale_mlp=True, mlp_ratio=2.7),
    "BEiT, Monarch": lambda: structured(of_timm("beit_base_patch16_224"), "monarch", but="qkv"),
    "relative positions by an MLP": lambda: of_timm("vit_relpos_small_patch16_224", class_token=True, depth=2),
    "relative positions of all blocks": lambda: of_timm("vit_srelpos_small_patch16_224", depth=2),
    "relative positions by a table": lambda: of_timm(
        "vit_relpos_base_patch16_clsgap_224", rel_pos_type="bias", depth=2
    ),
    "EVA-02": lambda: of_timm("eva02_tiny_patch14_224"),
    "EVA-02 of CLIP": lambda: of_timm("eva02_base_patch16_clip_224", mlp_ratio=2.7, num_heads=2),
    "EVA-02, heads of 20": lambda: of_timm("eva02_tiny_patch14_224", embed_dim=80),
    "EVA-02, Monarch": lambda: structured(
        of_timm("eva02_tiny_patch14_224", num_heads=2, mlp_ratio=2), "monarch", but="qkv"
    ),
    "DINOv3": lambda: of_timm("vit_small_plus_patch16_dinov3", init_values=0.5),
    "rotations that are learnt": lambda: of_timm("vit_small_patch16_rope_mixed_224"),
    "rotations, norms of queries and keys": lambda: of_timm("eva02_tiny_patch14_224", qk_norm=True, num_heads=2),
    "heads that share keys and values": lambda: of_timm(
        "eva02_tiny_patch14_224", attn_type="rope", qkv_fused=False, num_kv_heads=2
    ),
    "attention pooling, rotations": lambda: of_timm("vit_pe_core_tiny_patch16_384"),
    "SwinV2": lambda: swin(arch="swinv2_tiny_window8_256"),
    "SwinV2, one window": lambda: swin(arch="swinv2_tiny_window8_256", window_size=8),
    "norms behind": lambda: of_timm("vit_base_patch16_rpn_224"),
    "norms behind, relative positions": lambda: of_timm("vit_relpos_small_patch16_rpn_224", depth=2),
    "norms behind, EVA": lambda: of_timm("eva02_tiny_patch14_224", use_post_norm=True),
    "Swin": lambda: swin(),
    "Swin, heads of 16, no shift": lambda: swin(num_heads=(2, 4), window_size=8),
    "Swin, Monarch": lambda: structured(swin(), "monarch", but="reduction"),
    "ConvNeXt": lambda: convnext(ls_init_value=0.5),
    "ConvNeXt, other kernels": lambda: convnext(kernel_sizes=(9, 5, 3, 3), act_layer="silu"),
    "ConvNeXt V2": lambda: convnext(use_grn=True, ls_init_value=None),
    "ConvNeXt V2, Monarch": lambda: structured(convnext(use_grn=True), "monarch"),
    "ConvNeXt, RMSNorm": lambda: convnext(norm_layer="rmsnorm"),
    "ConvNeXt, convolutions in MLPs": lambda: convnext(conv_mlp=True, head_norm_first=True),
    "Monarch": lambda: structured(vit(), "monarch"),
    "block-diagonal": lambda: structured(vit(), "blockdiag", shuffle=True),
    "ViTAE": lambda: vitae(),
    "ViTAE in few groups": lambda: vitae(groups=(1, 1, 4)),
    "ViTAE, Monarch": lambda: structured(vitae(), "monarch"),
    "ViTAE with class token": lambda: vitae(**PATCHES),
}


def convnext(**arguments: Any) -> nn.Module:
    return of_timm("test_convnext2", embed=False, **{"act_layer": "gelu", **arguments})


def vitaev2(**arguments: Any) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"embed_dims": (16, 16, 16, 32), "token_dims": (32, 32, 64, 64), "depths": (1, 1, 1, 1), "num_classes": 7}
    heads = {"num_heads": (1, 2, 4, 4), "reduction_heads": (1, 1, 2, 4)}
    groups = {"groups": (1, 16, 16, 32), "reduction_groups": (1, 16, 16, 16)}
    model = spread(create_model("vitaev2_s", **{**sizes, **heads, **groups, "mlp_ratio": 2, **arguments}))
    for name, buffer in model.named_buffers():
        if "running" in name:
            buffer.add_(0.2 * torch.rand_like(buffer))
    return model


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


def structured(model: nn.Module, kind: str, but: str = "no layer", **options: Any) -> nn.Module:
    names = {
        name: LayerSpec(kind, layer.in_features, layer.out_features, nblocks=4, **options)
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and not name.startswith("head") and but not in name
    }
    return replace_linears(model, names).eval().requires_grad_(False)


def images(count: int, size: int = 40) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def divergence(dense: Tensor, logits: Any) -> float:
    p, q = (torch.as_tensor(values).double().softmax(-1) for values in (dense, logits))
    return float((p * (p / q).log()).sum(-1).mean())


@pytest.mark.parametrize("name", MODELS)
def test_the_program_is_the_model(name: str) -> None:
    model = MODELS[name]()
    found = evaluate(program_of(model, 40), images(3).double().numpy())
    expected = model.double()(images(3).double())
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-4)


@needs_library
def test_vitaev2_is_computed_where_windows_divide_its_grids() -> None:
    model, pixels = vitaev2(), images(16, 56)
    program = program_of(model, 56)
    expected = model.double()(pixels.double())
    np.testing.assert_allclose(evaluate(program, pixels.double().numpy()), expected.numpy(), rtol=1e-4, atol=1e-4)
    assert divergence(expected, ProgramSession(program)(pixels)) < 0.002
    activations = calibrate(model.float(), 56, pixels.split(8))
    assert divergence(expected, ProgramSession(int8_program(model, 56, activations))(pixels)) < 0.02


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
        (of_timm("vit_tiny_patch16_224", attn_layer="diff"), "no rule for attention of type DiffAttention"),
        (vit(qk_norm=True, embed_dim=80), "norms in attention with heads of 20, which would be filled up to 32"),
        (of_timm("vit_base_patch16_xp_224"), "no rule for a block ParallelScalingBlock"),
        (structured(of_timm("eva02_tiny_patch14_224", embed_dim=80), "monarch", but="qkv"), "filled up, is structured"),
        (create_model("vitaev2_s", num_classes=3).eval(), "windows of 7 by 7 do not divide a grid of 10 tokens"),
        (swin(window_size=3), "windows of 3 by 3 do not divide a grid of 8 tokens"),
        (swin(patch_size=8, window_size=5), "a grid of 5 tokens on a side is filled up"),
        (convnext(stem_type="overlap"), "its stem is no convolution of patches"),
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
