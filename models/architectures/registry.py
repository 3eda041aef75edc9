"""The architectures milkweed knows, by name: how to build each and how its images are prepared."""

import difflib
import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from ..errors import first_line, quoted
from ..layers.layer_spec import LayerSpec, replace_linears
from .arch_args import check_arch_args
from .t2t_vit import T2T_VARIANTS, T2TViT
from .timm_models import (
    ARCH_ARGS,
    create_timm_model,
    has_timm_model,
    list_timm_models,
    timm_classifier,
    timm_preprocess,
)
from .vitae import VITAE_V2_VARIANTS, VITAE_VARIANTS, ViTAE, ViTAEv2

CUSTOM_VITAE = "vitae_basic"
"""ViTAE v1 with free arguments; the named variants are points of it."""

_OWN: Mapping[str, tuple[type[nn.Module], Mapping[str, Any]]] = {
    CUSTOM_VITAE: (ViTAE, {}),
    **{name: (ViTAE, args) for name, args in VITAE_VARIANTS.items()},
    **{name: (ViTAEv2, args) for name, args in VITAE_V2_VARIANTS.items()},
    **{name: (T2TViT, args) for name, args in T2T_VARIANTS.items()},
}
"""What is built here: the class of each architecture, and its arguments. All others are timm's."""

IMAGENET_PREPROCESS: Mapping[str, Any] = {
    "size": 224,
    "crop_pct": 0.9,
    "interpolation": "bicubic",
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
}
"""What every published ViTAE, ViTAEv2 and T2T-ViT was evaluated with."""


def create_model(
    arch: str,
    *,
    num_classes: int = 1000,
    structure: Mapping[str, LayerSpec] | None = None,
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
    build = _create_own if arch in _OWN else create_timm_model
    try:
        model = build(arch, num_classes, arch_args)
    except (TypeError, ArithmeticError, AssertionError) as error:  # a list for a number, no heads
        raise ValueError(f"{arch} cannot be built with {quoted(arch_args)}: {first_line(error)}") from error
    return replace_linears(model, structure or {}).eval()


def list_models() -> list[str]:
    """Every architecture name, sorted."""
    return sorted([*_OWN, *list_timm_models()])


def is_model(arch: str) -> bool:
    """Whether `create_model` knows the name, with the tag of timm's weights or without."""
    return arch in _OWN or has_timm_model(arch)


def default_preprocess(arch: str, **arch_args: Any) -> dict[str, Any]:
    """How the published model of this name prepares its images: size, crop_pct, interpolation, mean, std.

    Raises:
        ValueError: an unknown name, or an `img_size` that is no square.
    """
    _check_known(arch)
    preprocess = dict(IMAGENET_PREPROCESS) if arch in _OWN else timm_preprocess(arch)
    size = arch_args.get("img_size")
    sides = size if isinstance(size, list | tuple) else [size]
    if not sides or any(side != sides[0] for side in sides):
        raise ValueError(f"{arch}: img_size {quoted(size)}: images are square")
    if isinstance(sides[0], int):
        preprocess["size"] = sides[0]
    return preprocess


def own_architectures() -> list[str]:
    """The names whose classes are milkweed's own, by family; all others are timm's."""
    return list(_OWN)


def classifier_layers(arch: str) -> tuple[str, ...]:
    """The layers whose outputs are an architecture's logits, by name; several where heads are averaged.

    Raises:
        ValueError: an unknown name.
    """
    _check_known(arch)
    return ("head",) if arch in _OWN else timm_classifier(arch)


def allowed_arch_args(arch: str) -> list[str]:
    """The arguments an architecture takes beside num_classes."""
    if arch not in _OWN:
        return list(ARCH_ARGS)
    return [name for name in inspect.signature(_OWN[arch][0]).parameters if name != "num_classes"]


def _create_own(arch: str, num_classes: int, arch_args: dict[str, Any]) -> nn.Module:
    build, args = _OWN[arch]
    merged = {**args, **arch_args}
    parameters = inspect.signature(build).parameters.values()
    missing = [p.name for p in parameters if p.default is p.empty and p.name not in ("num_classes", *merged)]
    if missing:
        raise ValueError(f"{arch} needs the arguments {', '.join(missing)}")
    return build(num_classes=num_classes, **merged)


def _check_known(arch: str) -> None:
    if is_model(arch):
        return
    near = difflib.get_close_matches(arch.lower(), list_models(), n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "see `milkweed models` for the names"
    raise ValueError(f"unknown architecture {quoted(arch)}: {hint}")
