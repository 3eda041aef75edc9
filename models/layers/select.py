"""Selects the linear layers of a model by role, name or pattern, and replaces them by structured ones."""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from ..errors import quoted
from .blockdiag import BlockdiagLinear
from .layer_spec import LayerSpec
from .lowrank import LowRankLinear
from .monarch import MonarchLinear
from .pixelfly import PixelflyLinear
from .shapes import KINDS
from .structured import StructuredLinear

_BLOCK = r"(?:\w+\.)*\d+\.(?:attn_block\.|attn_grid\.)?"
ROLES = {
    "mlp": re.compile(_BLOCK + r"(?:mlp|mlp_channels)\.(?:fc[12]|fc1_[gx]|w[123])"),
    "qkv": re.compile(_BLOCK + r"(?:attn|token_mixer)\.(?:qkv|qk|kv|[qkv](?:_proj)?)"),
    "proj": re.compile(_BLOCK + r"(?:attn|token_mixer)\.proj"),
}
"""Names of linear layers by the part they play in a block. A block has a number for a name: it is a normal cell of
ViTAE (not a reduction cell), or a block of T2T-ViT, ViT or most of timm's families. A Mixer's `mlp` is the one over
channels, as in the paper."""

READ_BY_THEIR_BLOCKS = {("GPSA", "qk"), ("Gemma4PatchEmbed", "input_proj")}
"""Classes of timm (ConViT, Gemma 4) that ask a linear layer's weight for its device or dtype, and that layer."""


def select_linears(model: nn.Module, layers: Sequence[str]) -> list[str]:
    """Names of the dense linear layers that `layers` selects, in the model's order.

    Args:
        layers: roles (`mlp`, `qkv`, `proj`), full names (`head`), or patterns (`blocks.1?.mlp.*`).

    Raises:
        ValueError: no entries, or one that selects nothing.
    """
    linears = list(replaceable_linears(model))
    if not layers:
        raise ValueError(f"no layers selected: name at least one of {', '.join(ROLES)}, or a layer")
    chosen: set[str] = set()
    for entry in layers:
        matched = [name for name in linears if _matches(entry, name)]
        if not matched:
            raise ValueError(_nothing_selected(model, entry, linears))
        chosen.update(matched)
    return [name for name in linears if name in chosen]


def replaceable_linears(model: nn.Module) -> dict[str, nn.Linear]:
    """The dense linear layers that can be replaced, by name.

    A layer cannot be replaced where the module around it reads its weight: timm's attention with a `q_bias` (BEiT,
    EVA, Swin v2) multiplies by `qkv.weight` itself unless it is told otherwise; READ_BY_THEIR_BLOCKS has others.
    """
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not _read_from_outside(model, name)
    }


def in_a_block(name: str) -> bool:
    """Whether a layer of this name plays one of ROLES in a block."""
    return any(role.fullmatch(name) for role in ROLES.values())


def linear_layer(model: nn.Module, name: str) -> nn.Linear:
    """The dense linear layer of that name.

    Raises:
        ValueError: there is none.
    """
    try:
        module = model.get_submodule(name)
    except AttributeError:
        raise ValueError(f"layer {quoted(name)}: the model has no such layer") from None
    if not isinstance(module, nn.Linear):
        raise ValueError(f"layer {quoted(name)} is a {type(module).__name__}, not a dense linear layer")
    if _read_from_outside(model, name):
        raise ValueError(f"layer {quoted(name)} cannot be replaced: the block around it reads its weight itself")
    return module


def _matches(entry: str, name: str) -> bool:
    role = ROLES.get(entry)
    return role.fullmatch(name) is not None if role else fnmatchcase(name, entry)


def _read_from_outside(model: nn.Module, name: str) -> bool:
    around, _, attribute = name.rpartition(".")
    parent = model.get_submodule(around)
    biased = attribute == "qkv" and getattr(parent, "q_bias", None) is not None
    biased = biased and not getattr(parent, "qkv_bias_separate", False)
    return biased or (type(parent).__name__, attribute) in READ_BY_THEIR_BLOCKS


def _nothing_selected(model: nn.Module, entry: str, linears: Sequence[str]) -> str:
    matching = [(name, module) for name, module in model.named_modules() if _matches(entry, name)]
    for name, module in matching:
        if isinstance(module, StructuredLinear):
            return f"layers {quoted(entry)} selects nothing dense: {name} is a {KINDS[module.kind].name} layer already"
    for name, module in matching:
        if isinstance(module, nn.Linear):
            return f"layers {quoted(entry)} selects nothing replaceable: the block of {name} reads its weight itself"
    example = f"such as {linears[0]}" if linears else "and this model has none"
    return (
        f"layers {quoted(entry)} selects no linear layer: use {', '.join(ROLES)}, "
        f"or a layer's name or pattern, {example}"
    )


def build_layer(
    spec: LayerSpec, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> StructuredLinear:
    """A freshly initialised layer."""
    classes = (BlockdiagLinear, LowRankLinear, MonarchLinear, PixelflyLinear)
    layer = next(kind for kind in classes if kind.kind == spec.kind)
    return layer(spec.in_features, spec.out_features, spec.bias, **spec.options, device=device, dtype=dtype)


def layer_specs_for(
    model: nn.Module, names: Sequence[str], kind: str = "monarch", **options: Any
) -> dict[str, LayerSpec]:
    """Specs of one kind for the named linear layers of a model; the options are fields of `LayerSpec`.

    Raises:
        ValueError: a name that is no linear layer, or an option the kind has not or outside a layer's limits.
    """
    specs = {}
    for name in names:
        linear = linear_layer(model, name)
        bias = linear.bias is not None
        try:
            specs[name] = LayerSpec(kind, linear.in_features, linear.out_features, bias=bias, **options)
        except ValueError as error:
            raise ValueError(f"layer {name}: {error}") from None
    return specs


def layer_spec_of(layer: StructuredLinear) -> LayerSpec:
    """The spec that builds a layer like this one."""
    options = {name: getattr(layer, name) for name in layer.option_names}
    return LayerSpec(layer.kind, layer.in_features, layer.out_features, bias=layer.bias is not None, **options)


def layer_specs_of(model: nn.Module) -> dict[str, LayerSpec]:
    """The specs of a model's structured layers, by name."""
    return {
        name: layer_spec_of(module) for name, module in model.named_modules() if isinstance(module, StructuredLinear)
    }


def replace_linears(model: nn.Module, specs: Mapping[str, LayerSpec]) -> nn.Module:
    """Replace linear layers in place by freshly initialised structured ones; returns the model.

    Raises:
        ValueError: a name that is no linear layer of the model, or one whose widths or bias differ.
    """
    for name, spec in specs.items():
        linear = linear_layer(model, name)
        actual = (linear.in_features, linear.out_features, linear.bias is not None)
        if actual != (spec.in_features, spec.out_features, spec.bias):
            raise ValueError(
                f"layer {name}: structure is for in_features {spec.in_features}, out_features "
                f"{spec.out_features}, bias {spec.bias}; the model has {actual[0]}, {actual[1]}, {actual[2]}"
            )
    for name, spec in specs.items():
        weight = linear_layer(model, name).weight
        model.set_submodule(name, build_layer(spec, weight.device, weight.dtype).train(model.training))
    return model
