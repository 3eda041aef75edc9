"""The architectures milkweed knows, by name: how to build each and how its images are prepared."""

import difflib
import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from .arch_args import check_arch_args
from .errors import quoted
from .structure import LayerStructure, replace_linears
from .timm_door import ARCH_ARGS, create_timm_model, has_timm_model, list_timm_models, timm_preprocess
from .vitae import VITAE_VARIANTS, ViTAE

CUSTOM_VITAE = "vitae_basic"
"""ViTAE v1 with free arguments; the named variants are points of it."""

IMAGENET_PREPROCESS: Mapping[str, Any] = {
    "size": 224,
    "crop_pct": 0.9,
    "interpolation": "bicubic",
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
}
"""What every published ViTAE was evaluated with."""


def create_model(
    arch: str,
    *,
    num_classes: int = 1000,
    structure: Mapping[str, LayerStructure] | None = None,
    **arch_args: Any,
) -> nn.Module:
    """A freshly initialised model in eval mode: normalised images (B, 3, H, W) -> logits (B, num_classes).

    Args:
        arch: a name of `list_models()`; timm names may carry the tag of their weights.
        structure: linear layers to replace, by name.
        arch_args: arguments of the architecture, plain data.

    Raises:
        ValueError: an unknown name (with the nearest ones), or arguments it does not take.
    """
    _check_known(arch)
    check_arch_args(arch, {"num_classes": num_classes, **arch_args}, {"num_classes", *allowed_arch_args(arch)})
    if is_vitae(arch):
        model = _create_vitae(arch, num_classes, arch_args)
    else:
        model = create_timm_model(arch, num_classes, arch_args)
    return replace_linears(model, structure or {}).eval()


def list_models() -> list[str]:
    """Every architecture name, sorted."""
    return sorted([CUSTOM_VITAE, *VITAE_VARIANTS, *list_timm_models()])


def default_preprocess(arch: str, **arch_args: Any) -> dict[str, Any]:
    """How the published model of this name prepares its images: size, crop_pct, interpolation, mean, std.

    Raises:
        ValueError: an unknown name.
    """
    _check_known(arch)
    preprocess = dict(IMAGENET_PREPROCESS) if is_vitae(arch) else timm_preprocess(arch)
    if isinstance(arch_args.get("img_size"), int):
        preprocess["size"] = arch_args["img_size"]
    return preprocess


def is_vitae(arch: str) -> bool:
    """Whether `arch` is ViTAE v1."""
    return arch == CUSTOM_VITAE or arch in VITAE_VARIANTS


def allowed_arch_args(arch: str) -> list[str]:
    """The arguments an architecture takes beside num_classes."""
    if not is_vitae(arch):
        return list(ARCH_ARGS)
    return [name for name in inspect.signature(ViTAE).parameters if name != "num_classes"]


def _create_vitae(arch: str, num_classes: int, arch_args: dict[str, Any]) -> nn.Module:
    merged = {**VITAE_VARIANTS.get(arch, {}), **arch_args}
    parameters = inspect.signature(ViTAE).parameters.values()
    missing = [p.name for p in parameters if p.default is p.empty and p.name not in ("num_classes", *merged)]
    if missing:
        raise ValueError(f"{arch} needs the arguments {', '.join(missing)}")
    return ViTAE(num_classes=num_classes, **merged)


def _check_known(arch: str) -> None:
    if is_vitae(arch) or has_timm_model(arch):
        return
    near = difflib.get_close_matches(arch.lower(), list_models(), n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "see `milkweed models` for the names"
    raise ValueError(f"unknown architecture {quoted(arch)}: {hint}")
