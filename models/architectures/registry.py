"""The registry of architectures: how to build each by name, and how its images are prepared."""

import inspect
import re
from collections.abc import Mapping
from difflib import SequenceMatcher
from itertools import takewhile
from typing import Any, cast

from torch import nn

from ..errors import first_line, quoted
from ..layers.layer_spec import LayerSpec
from ..layers.select import replace_linears
from ..layers.token_plan import ALL_TOKENS, TokenPlan
from .arch_args import check_arch_args
from .meta_init import on_meta
from .no_classifier import classifier_name, without_classifier
from .t2t_vit import T2T_VARIANTS, T2TViT
from .timm_models import (
    ARCH_ARGS,
    create_timm_model,
    has_timm_model,
    list_timm_models,
    timm_classifier,
    timm_family,
    timm_preprocess,
    timm_refusal,
)
from .token_blocks import apply_token_plan
from .vitae import VITAE_V2_VARIANTS, VITAE_VARIANTS, ViTAE, ViTAEv2
from .widths import Widths, apply_widths

CUSTOM_VITAE = "vitae_basic"
"""The name of ViTAE v1 with free arguments; the named variants have fixed ones."""

_OWN: Mapping[str, tuple[type[nn.Module], Mapping[str, Any]]] = {
    CUSTOM_VITAE: (ViTAE, {}),
    **{name: (ViTAE, args) for name, args in VITAE_VARIANTS.items()},
    **{name: (ViTAEv2, args) for name, args in VITAE_V2_VARIANTS.items()},
    **{name: (T2TViT, args) for name, args in T2T_VARIANTS.items()},
}
"""Our own architectures: class and arguments by name. All others are timm's."""

IMAGENET_PREPROCESS: Mapping[str, Any] = {
    "size": 224,
    "crop_pct": 0.9,
    "interpolation": "bicubic",
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
}
"""The preprocessing of every published ViTAE, ViTAEv2 and T2T-ViT."""

SAME_LETTERS = 0.8
"""How much of the letters of a wrong name a near one has, as difflib counts."""


def create_model(
    arch: str,
    *,
    num_classes: int = 1000,
    classifier: bool = True,
    widths: Widths | None = None,
    layer_specs: Mapping[str, LayerSpec] | None = None,
    tokens: TokenPlan = ALL_TOKENS,
    **arch_args: Any,
) -> nn.Module:
    """A freshly initialised model in eval mode: normalised images (B, 3, H, W) -> logits (B, num_classes).

    Args:
        arch: a name of `list_models()`; a name of timm may end in the tag of its weights.
        classifier: if false the model gives its embedding, of `num_classes` values, which its classifier would read.
        widths: MLPs and attention that are narrower than the architecture has them, by name.
        layer_specs: linear layers to replace by structured ones, by name; their sides are those after `widths`.
        tokens: which tokens it computes, where that is not all.
        arch_args: arguments of the architecture, as plain data.

    Raises:
        ValueError: an unknown name (the message has the nearest ones), or arguments, widths or a plan that do not fit.
    """
    _check_known(arch)
    check_arch_args(arch, {"num_classes": num_classes, **arch_args}, {"num_classes", *allowed_arch_args(arch)})
    if not isinstance(classifier, bool):
        raise ValueError(f"{arch}: classifier {quoted(classifier)} must be true or false")
    build = _create_own if arch in _OWN else create_timm_model
    try:
        model = build(arch, num_classes, arch_args)
        model = model if classifier else without_classifier(model)
    except ImportError:
        raise
    except Exception as error:  # classes that others wrote: they refuse a value in any way
        raise ValueError(f"{arch} cannot be built with {quoted(arch_args)}: {first_line(error)}") from error
    model = replace_linears(apply_widths(model, widths or {}), layer_specs or {})
    return apply_token_plan(model, tokens).eval()


def list_models() -> list[str]:
    """Every architecture name, sorted."""
    return sorted([*_OWN, *list_timm_models()])


def is_model(arch: str) -> bool:
    """Whether `create_model` knows the name, with or without the tag of timm's weights."""
    return arch in _OWN or has_timm_model(arch)


def default_preprocess(arch: str, **arch_args: Any) -> dict[str, Any]:
    """The preprocessing of the published model of this name: size, crop_pct, interpolation, mean, std, and
    `crop_mode` where that is not center.

    Raises:
        ValueError: an unknown name, or an `img_size` that is no square.
    """
    _check_known(arch)
    preprocess = dict(IMAGENET_PREPROCESS) if arch in _OWN else timm_preprocess(arch)
    size = square(arch, arch_args).get("img_size")
    return preprocess | ({"size": size} if isinstance(size, int) else {})


def square(arch: str, arch_args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with a number for an `img_size` that is a pair, as timm writes it.

    Raises:
        ValueError: the sides differ.
    """
    size = arch_args.get("img_size")
    sides = size if isinstance(size, list | tuple) else [size]
    if not sides or any(side != sides[0] for side in sides):
        raise ValueError(f"{arch}: img_size {quoted(size)}: images are square")
    return {**arch_args, **({"img_size": sides[0]} if "img_size" in arch_args else {})}


def family(arch: str) -> str:
    """The family of an architecture: our own class, or timm's module that defines it."""
    return _OWN[arch][0].__name__ if arch in _OWN else timm_family(arch)


def own_architectures() -> list[str]:
    """The names of milkweed's own architectures, by family; all others are timm's."""
    return list(_OWN)


def classifier_layers(arch: str) -> tuple[str, ...]:
    """Names of the layers whose outputs are the logits; several where heads are averaged.

    Raises:
        ValueError: an unknown name.
    """
    _check_known(arch)
    return ("head",) if arch in _OWN else timm_classifier(arch)


def embedding_width(arch: str, arch_args: Mapping[str, Any]) -> int:
    """The number of values that an architecture's classifier reads.

    Raises:
        ValueError: as `create_model`, or it has no classifier that is one linear layer.
    """
    with on_meta():
        model = create_model(arch, **arch_args)
    if (name := classifier_name(model)) is None:
        raise ValueError(f"{arch} has no classifier that is one linear layer, which could be left out")
    return cast(nn.Linear, model.get_submodule(name)).in_features


def allowed_arch_args(arch: str) -> list[str]:
    """The arguments that an architecture takes beside num_classes."""
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
    hint = timm_refusal(arch)
    if hint is None:
        near = _near_names(arch)
        hint = f"did you mean {', '.join(near)}?" if near else "see `milkweed models` for the names"
    raise ValueError(f"unknown architecture {quoted(arch)}: {hint}")


def _near_names(arch: str) -> list[str]:
    """At most three architectures whose names are near a wrong one, all of one family, the nearest first.

    A name is near if its letters alone are: `resnet55` is no `resmlp_24`, though more of its digits are the same.
    """
    nearness = dict[str, tuple[int, float]]()
    wrong = re.sub(r"[\W_]", "", arch.rpartition("/")[2].partition(".")[0].lower())
    letters = re.sub(r"\d", "", wrong)
    for name in list_models():
        plain = name.replace("_", "")
        others = re.sub(r"\d", "", plain)
        begins = len(letters) > 2 and others.startswith(letters)
        if begins or SequenceMatcher(None, letters, others).ratio() >= SAME_LETTERS:
            begin = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(wrong, plain, strict=False)))
            nearness[name] = begin, SequenceMatcher(None, wrong, plain).ratio()
    ranked = sorted(nearness, key=lambda name: nearness[name], reverse=True)
    return [name for name in ranked if family(name) == family(ranked[0])][:3]
