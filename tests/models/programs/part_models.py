"""Small models of every part that programs have rules for, with answers that are not flat."""

import re
from functools import partial
from typing import Any

import timm
import torch
from timm.layers import GluMlp, SwiGLUPacked
from timm.models.mlp_mixer import MlpMixer
from timm.models.vision_transformer import ParallelScalingBlock
from torch import nn

from milkweed.models import create_model
from milkweed.models.architectures.token_blocks import apply_token_plan
from milkweed.models.layers.layer_spec import LayerSpec
from milkweed.models.layers.select import replace_linears
from milkweed.models.layers.token_plan import TokenMerging, TokenPlan

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
NARROW = {"blocks.0.attn": 8, "blocks.1.attn": 5, "blocks.1.mlp": 50}
T2T: dict[str, Any] = {"num_classes": 7, "img_size": 80, "embed_dim": 64, "depth": 3, "num_heads": 4, "mlp_ratio": 2}
MERGING, MEANS = TokenMerging(1, 1, 0.4, 0.1), TokenMerging(1, 1, 0.4)


def vit(plan: TokenPlan | None = None, arch: str = "deit_tiny_patch16_224", **arguments: Any) -> nn.Module:
    torch.manual_seed(0)
    return apply_token_plan(spread(create_model(arch, **{**ARGS, **arguments})), plan or TokenPlan())


def of_timm(arch: str, embed: bool = True, **arguments: Any) -> nn.Module:
    """A model with arguments that users of milkweed cannot give; without `embed` its sizes are not those of ARGS."""
    torch.manual_seed(0)
    return spread(timm.create_model(arch, **{**(ARGS if embed else {"num_classes": 7}), **arguments}))


def parallel(**arguments: Any) -> nn.Module:
    """A ViT of blocks whose MLP is beside attention, as ViT-22B's."""
    block = partial(ParallelScalingBlock, fuse_out_proj=arguments.pop("fuse_out_proj", False))
    return of_timm("vit_tiny_patch16_224", block_fn=block, **arguments)


SWIN: dict[str, Any] = {"img_size": 40, "embed_dim": 32, "depths": (2, 2), "num_heads": (1, 2), "window_size": 4}


def swin(arch: str = "swin_tiny_patch4_window7_224", **arguments: Any) -> nn.Module:
    return of_timm(arch, embed=False, **{**SWIN, "patch_size": 5, **arguments})


def swin_v2() -> nn.Module:
    """Build a SwinV2 as users do, whose queries, keys and values may be structured."""
    torch.manual_seed(0)
    return spread(create_model("swinv2_tiny_window8_256", num_classes=7, patch_size=5, **SWIN))


def spread(model: nn.Module) -> nn.Module:
    """The model with answers that are not flat."""
    model.eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2 and not name.endswith(".w"):
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
    "merging, mean": lambda: vit(TokenPlan(MEANS), global_pool="avg"),
    "merging, norm and mean": lambda: vit(TokenPlan(MEANS), global_pool="avg", fc_norm=False, class_token=False),
    "merging, class token beside mean": lambda: vit(TokenPlan(MERGING), global_pool="token_avg", reg_tokens=2),
    "merging, attention pooling": lambda: vit(TokenPlan(MEANS), global_pool="map", class_token=False),
    "merging, attention pooling of patches": lambda: vit(TokenPlan(MEANS), global_pool="map", reg_tokens=2),
    "mean, fc_norm": lambda: vit(global_pool="avg"),
    "norm, mean": lambda: vit(global_pool="avg", fc_norm=False),
    "class token, fc_norm": lambda: vit(fc_norm=True),
    "mean without class token": lambda: vit(global_pool="avg", class_token=False, reg_tokens=2),
    "class token beside mean": lambda: vit(global_pool="token_avg", reg_tokens=2),
    "attention pooling": lambda: vit(global_pool="map", class_token=False),
    "attention pooling of patches": lambda: vit(global_pool="map", reg_tokens=2),
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
    "norms of queries and keys of 20": lambda: vit(qk_norm=True, embed_dim=80),
    "RMSNorms of queries and keys of 20": lambda: of_timm(
        "vit_tiny_patch16_224", norm_layer="rmsnorm", qk_norm=True, embed_dim=80
    ),
    "rotations, norms of queries and keys of 20": lambda: of_timm("eva02_tiny_patch14_224", qk_norm=True, embed_dim=80),
    "SwinV2, heads of 20": lambda: swin(arch="swinv2_tiny_window8_256", embed_dim=80, num_heads=(4, 8)),
    "norms inside": lambda: of_timm("vit_tiny_patch16_224", scale_attn_norm=True, scale_mlp_norm=True),
    "RMSNorm": lambda: of_timm("vit_tiny_patch16_224", norm_layer="rmsnorm", qk_norm=True),
    "attentions and MLPs side by side": lambda: of_timm("vit_small_patch16_18x2_224", init_values=0.5),
    "an MLP beside attention": lambda: parallel(),
    "an MLP beside attention, one last layer": lambda: parallel(
        fuse_out_proj=True, qkv_bias=False, qk_norm=True, init_values=0.5, embed_dim=80
    ),
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
    "BEiT, Monarch": lambda: structured(vit(arch="beit_base_patch16_224"), "monarch", bias_but="qkv"),
    "relative positions by an MLP": lambda: of_timm("vit_relpos_small_patch16_224", class_token=True, depth=2),
    "relative positions of all blocks": lambda: of_timm("vit_srelpos_small_patch16_224", depth=2),
    "relative positions by a table": lambda: of_timm(
        "vit_relpos_base_patch16_clsgap_224", rel_pos_type="bias", depth=2
    ),
    "EVA-02": lambda: of_timm("eva02_tiny_patch14_224"),
    "EVA-02 of CLIP": lambda: of_timm("eva02_base_patch16_clip_224", mlp_ratio=2.7, num_heads=2),
    "EVA-02, heads of 20": lambda: of_timm("eva02_tiny_patch14_224", embed_dim=80),
    "EVA-02, Monarch": lambda: structured(
        vit(arch="eva02_tiny_patch14_224", num_heads=2, mlp_ratio=2), "monarch", bias_but="qkv"
    ),
    "DINOv3": lambda: of_timm("vit_small_plus_patch16_dinov3", init_values=0.5),
    "rotations that are learnt": lambda: of_timm("vit_small_patch16_rope_mixed_224"),
    "rotations, norms of queries and keys": lambda: of_timm("eva02_tiny_patch14_224", qk_norm=True, num_heads=2),
    "heads that share keys and values": lambda: of_timm(
        "eva02_tiny_patch14_224", attn_type="rope", qkv_fused=False, num_kv_heads=2
    ),
    "attention pooling, rotations": lambda: of_timm("vit_pe_core_tiny_patch16_384"),
    "narrower queries, keys and hidden units": lambda: vit(TokenPlan(class_last=True), widths=NARROW),
    "Mixer": lambda: mixer(),
    "Mixer, Monarch": lambda: structured(mixer(), "monarch", but="tokens"),
    "Mixer, gated": lambda: mixer(mlp_layer=GluMlp, act_layer=nn.SiLU, mlp_ratio=(1.0, 4.0)),
    "SwinV2": lambda: swin(arch="swinv2_tiny_window8_256"),
    "SwinV2, Monarch": lambda: structured(swin_v2(), "monarch", but="reduction|cpb", bias_but="qkv"),
    "SwinV2, one window": lambda: swin(arch="swinv2_tiny_window8_256", window_size=8),
    "norms behind": lambda: of_timm("vit_base_patch16_rpn_224"),
    "norms behind, relative positions": lambda: of_timm("vit_relpos_small_patch16_rpn_224", depth=2),
    "norms behind, EVA": lambda: of_timm("eva02_tiny_patch14_224", use_post_norm=True),
    "Swin": lambda: swin(),
    "Swin, heads of 16, no shift": lambda: swin(num_heads=(2, 4), window_size=8),
    "Swin, Monarch": lambda: structured(swin(), "monarch", but="reduction"),
    "ConvNeXt": lambda: convnext(ls_init_value=0.5),
    "ConvNeXt, other kernels": lambda: convnext(kernel_sizes=(9, 5, 3, 3), act_layer="silu"),
    "ConvNeXt, 24, 40 and 56 channels": lambda: of_timm(
        "test_convnext", embed=False, act_layer="gelu", dims=(24, 40, 56, 64)
    ),
    "ConvNeXt, a stem that overlaps": lambda: convnext(stem_type="overlap_tiered"),
    "ConvNeXt, a stem with GELU": lambda: convnext(stem_type="overlap_act"),
    "ConvNeXt V2": lambda: convnext(use_grn=True, ls_init_value=None),
    "ConvNeXt V2, Monarch": lambda: structured(convnext(use_grn=True), "monarch"),
    "ConvNeXt, RMSNorm": lambda: convnext(norm_layer="rmsnorm"),
    "ConvNeXt, convolutions in MLPs": lambda: convnext(conv_mlp=True, head_norm_first=True),
    "Monarch": lambda: structured(vit(), "monarch"),
    "block-diagonal": lambda: structured(vit(), "blockdiag", shuffle=True),
    "ViTAE": lambda: vitae(),
    "ViTAE in few groups": lambda: vitae(groups=(1, 1, 4)),
    "ViTAE, narrower queries and keys": lambda: vitae(widths={"layers.2.NC.0.attn": 8}),
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


def mixer(**arguments: Any) -> nn.Module:
    sizes = {"img_size": 40, "patch_size": 8, "embed_dim": 64, "num_blocks": 3, "num_classes": 7}
    torch.manual_seed(0)
    model = MlpMixer(**{**sizes, **arguments})
    nn.init.normal_(model.head.weight, std=0.02)
    return spread(model)


def t2t(plan: TokenPlan | None = None, arch: str = "t2t_vit_7", **arguments: Any) -> nn.Module:
    torch.manual_seed(0)
    return apply_token_plan(spread(create_model(arch, **{**T2T, **arguments})), plan or TokenPlan())


def structured(
    model: nn.Module, kind: str, but: str = "no layer", bias_but: str = "no layer", **options: Any
) -> nn.Module:
    names = {
        name: LayerSpec(kind, layer.in_features, layer.out_features, bias=bias_but not in name, nblocks=4, **options)
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and not name.startswith("head") and not re.search(but, name)
    }
    return replace_linears(model, names).eval().requires_grad_(False)
