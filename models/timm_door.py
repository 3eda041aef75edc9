"""The one place that knows timm: its ViT and DeiT classes under timm's names, never with fetched weights."""

import re
from types import ModuleType
from typing import Any

from torch import nn

_NAME = re.compile(
    r"(vit_(tiny|small|base|large|huge)_patch\d+_\d+|"
    r"deit3?_(tiny|small|medium|base|large|huge)(_distilled)?_patch\d+_\d+)(\.\w+)?"
)
ARCH_ARGS = (
    "img_size",
    "patch_size",
    "in_chans",
    "embed_dim",
    "depth",
    "num_heads",
    "mlp_ratio",
    "qkv_bias",
    "qk_norm",
    "init_values",
    "class_token",
    "no_embed_class",
    "reg_tokens",
    "pre_norm",
    "fc_norm",
    "global_pool",
    "drop_rate",
    "pos_drop_rate",
    "proj_drop_rate",
    "attn_drop_rate",
    "drop_path_rate",
)
"""Arguments of timm's VisionTransformer that are plain data and name no file, class or address."""


def is_timm_name(arch: str) -> bool:
    """Whether `arch` is spelled like a ViT or DeiT of timm; timm is not imported."""
    return _NAME.fullmatch(arch) is not None


def list_timm_models() -> list[str]:
    """timm's ViT and DeiT names that milkweed serves, without the tags of pretrained weights."""
    return [name for name in _timm().list_models() if is_timm_name(name)]


def has_timm_model(arch: str) -> bool:
    """Whether this timm knows the name, and its tag if it has one (`vit_tiny_patch16_224.augreg_in21k`)."""
    if not is_timm_name(arch):
        return False
    timm = _timm()
    known = timm.models.is_model(arch.partition(".")[0])
    return bool(known and ("." not in arch or timm.models.get_pretrained_cfg(arch) is not None))


def create_timm_model(arch: str, num_classes: int, arch_args: dict[str, Any]) -> nn.Module:
    """A freshly initialised model; nothing is fetched."""
    model: nn.Module = _timm().create_model(arch, pretrained=False, num_classes=num_classes, **arch_args)
    return model


def timm_preprocess(arch: str) -> dict[str, Any]:
    """How timm evaluates this name: size, crop_pct, interpolation, mean, std."""
    config = _timm().models.get_pretrained_cfg(arch)
    return {
        "size": int(config.input_size[-1]),
        "crop_pct": float(config.crop_pct),
        "interpolation": str(config.interpolation),
        "mean": [float(value) for value in config.mean],
        "std": [float(value) for value in config.std],
    }


def _timm() -> ModuleType:
    try:
        import timm
    except ImportError as error:
        raise ImportError(f"ViT and DeiT need the package timm: pip install timm ({error})") from error
    return timm
