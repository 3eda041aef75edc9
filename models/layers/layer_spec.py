"""Which linear layers of a model are structured, and how: selecting them, describing them, replacing them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from math import prod
from typing import Any

import torch
from torch import nn

from ..errors import quoted
from .blockdiag import BlockdiagLinear
from .lowrank import LowRankLinear
from .monarch import MonarchLinear
from .pixelfly import PixelflyLinear
from .structured import StructuredLinear

LAYERS: Mapping[str, type[StructuredLinear]] = {
    layer.kind: layer for layer in (MonarchLinear, LowRankLinear, BlockdiagLinear, PixelflyLinear)
}
"""The layer of each kind of matrix."""

KINDS = tuple(LAYERS)

KIND_NAMES = {"monarch": "Monarch", "lowrank": "low-rank", "blockdiag": "block-diagonal", "pixelfly": "Pixelfly"}
"""For sentences."""

_BLOCK = r"(?:\w+\.)*\d+\.(?:attn_block\.|attn_grid\.)?"
ROLES = {
    "mlp": re.compile(_BLOCK + r"(?:mlp|mlp_channels)\.(?:fc[12]|fc1_[gx]|w[123])"),
    "qkv": re.compile(_BLOCK + r"(?:attn|token_mixer)\.(?:qkv|qk|kv|[qkv](?:_proj)?)"),
    "proj": re.compile(_BLOCK + r"(?:attn|token_mixer)\.proj"),
}
"""Layers by their part in a block, which has a number for a name: ViTAE's normal cells (not its reduction cells), the
blocks of T2T-ViT, of ViT and of most of timm's families. A Mixer's `mlp` is that over channels, as in the paper."""


@dataclass(frozen=True)
class LayerSpec:
    """One replaced linear layer: what it replaces and by which structured matrix.

    Each kind has options of its own, those of its layer; what it has not stays at the default.

    Args:
        kind: of the matrix, one of KINDS.
        in_features, out_features: widths of the layer.
        nblocks: of monarch and blockdiag.
        rank: of monarch (None: fly's shapes), lowrank and pixelfly (needed).
        bias: whether the layer has one.
        block_size, butterfly_size, n_factors, gating, global_size: of pixelfly.
        shuffle: of blockdiag.
    """

    kind: str
    in_features: int
    out_features: int
    nblocks: int = 4
    rank: int | None = None
    bias: bool = True
    block_size: int = 32
    butterfly_size: int = 16
    n_factors: int = 2
    gating: bool = True
    shuffle: bool = False
    global_size: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in KINDS:
            raise ValueError(f"structure kind {quoted(self.kind)} is unknown: must be one of {', '.join(KINDS)}")
        for field in fields(self)[1:]:
            _check_type(field.name, getattr(self, field.name))
            if field.name in _COMMON or field.name in LAYERS[self.kind].option_names:
                continue
            value = getattr(self, field.name)
            if value != field.default:
                raise ValueError(f"{field.name} {value}: a {self.kind} structure has no such option")
        self.weight_shapes()

    @classmethod
    def from_dict(cls, values: Any) -> "LayerSpec":
        """From its JSON form.

        Raises:
            ValueError: fields missing or unknown, or values outside their limits.
        """
        kind = values.get("kind") if isinstance(values, dict) else None
        layer = LAYERS.get(kind) if isinstance(kind, str) else None
        names = {"kind", *_COMMON, *(layer.option_names if layer else (f.name for f in fields(cls)))}
        if not isinstance(values, dict) or not {"kind", "in_features", "out_features"} <= set(values) <= names:
            raise ValueError(f"a layer's structure must have {', '.join(sorted(names))}, not {quoted(values)}")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Its JSON form: what its kind has, and no more."""
        widths = {"in_features": self.in_features, "out_features": self.out_features}
        return {"kind": self.kind, **widths, **self.options, "bias": self.bias}

    @property
    def options(self) -> dict[str, Any]:
        """The options that its kind has, by name."""
        return {name: getattr(self, name) for name in LAYERS[self.kind].option_names}

    @property
    def weight_count(self) -> int:
        """Stored weights, without the bias; also the multiply-accumulates for one token (a gate has one fewer)."""
        return sum(prod(shape) for shape in self.weight_shapes().values())

    @property
    def dense_weight_count(self) -> int:
        """Weights of the dense layer it replaces, without the bias."""
        return self.in_features * self.out_features

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the stored weights, without the bias, by key."""
        return LAYERS[self.kind].weight_shapes(self.in_features, self.out_features, **self.options)

    def build(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> StructuredLinear:
        """The layer itself, freshly initialised."""
        layer: Any = LAYERS[self.kind]
        built = layer(self.in_features, self.out_features, self.bias, **self.options, device=device, dtype=dtype)
        assert isinstance(built, StructuredLinear)
        return built


_COMMON = ("in_features", "out_features", "bias")


def _check_type(name: str, value: object) -> None:
    if name in ("bias", "gating", "shuffle"):
        if type(value) is not bool:
            raise ValueError(f"{name} {quoted(value)} must be true or false")
    elif type(value) is not int and not (name == "rank" and value is None):
        raise ValueError(f"{name} {quoted(value)} must be a whole number")


def select_linears(model: nn.Module, layers: Sequence[str]) -> list[str]:
    """Names of the dense linear layers that `layers` asks for, in the model's order.

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
    """The dense linear layers that another layer can stand for, by name.

    Those are left out whose weights the module around them reads itself: timm's attention with a `q_bias` (BEiT,
    EVA, Swin v2) multiplies by `qkv.weight` and adds a bias put together from others.
    """
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not _read_from_outside(model, name)
    }


def structures_for(
    model: nn.Module,
    names: Sequence[str],
    kind: str = "monarch",
    *,
    nblocks: int = 4,
    rank: int | None = None,
    block_size: int = 32,
    butterfly_size: int = 16,
    n_factors: int = 2,
    gating: bool = True,
    shuffle: bool = False,
    global_size: int = 0,
) -> dict[str, LayerSpec]:
    """Structures of one kind for the named linear layers of a model; options as in `LayerSpec`.

    Raises:
        ValueError: a name that is no linear layer, or an option the kind has not or outside a layer's limits.
    """
    structure = {}
    for name in names:
        linear = linear_layer(model, name)
        try:
            structure[name] = LayerSpec(
                kind,
                linear.in_features,
                linear.out_features,
                nblocks,
                rank,
                linear.bias is not None,
                block_size,
                butterfly_size,
                n_factors,
                gating,
                shuffle,
                global_size,
            )
        except ValueError as error:
            raise ValueError(f"layer {name}: {error}") from None
    return structure


def monarch_structure(
    model: nn.Module, names: Sequence[str], nblocks: int = 4, rank: int | None = None
) -> dict[str, LayerSpec]:
    """Monarch structures for the named linear layers of a model: `structures_for` of that kind."""
    return structures_for(model, names, "monarch", nblocks=nblocks, rank=rank)


def replace_linears(model: nn.Module, structure: Mapping[str, LayerSpec]) -> nn.Module:
    """Replace linear layers in place by freshly initialised structured ones; returns the model.

    Raises:
        ValueError: a name that is no linear layer of the model, or one whose widths or bias differ.
    """
    for name, layer in structure.items():
        linear = linear_layer(model, name)
        found = (linear.in_features, linear.out_features, linear.bias is not None)
        if found != (layer.in_features, layer.out_features, layer.bias):
            raise ValueError(
                f"layer {name}: structure is for in_features {layer.in_features}, out_features "
                f"{layer.out_features}, bias {layer.bias}; the model has {found[0]}, {found[1]}, {found[2]}"
            )
    for name, layer in structure.items():
        weight = linear_layer(model, name).weight
        model.set_submodule(name, layer.build(weight.device, weight.dtype).train(model.training))
    return model


def layer_spec_of(model: nn.Module) -> dict[str, LayerSpec]:
    """The structured layers a model has."""
    return {name: module.structure for name, module in model.named_modules() if isinstance(module, StructuredLinear)}


def _matches(entry: str, name: str) -> bool:
    role = ROLES.get(entry)
    return role.fullmatch(name) is not None if role else fnmatchcase(name, entry)


def _read_from_outside(model: nn.Module, name: str) -> bool:
    around, _, own = name.rpartition(".")
    return own == "qkv" and getattr(model.get_submodule(around), "q_bias", None) is not None


def _nothing_selected(model: nn.Module, entry: str, linears: Sequence[str]) -> str:
    structured = next(((name, layer) for name, layer in layer_spec_of(model).items() if _matches(entry, name)), None)
    if structured is not None:
        name, layer = structured
        return f"layers {quoted(entry)} selects nothing dense: {name} is a {KIND_NAMES[layer.kind]} layer already"
    dense = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and _matches(entry, name)]
    if dense:
        return f"layers {quoted(entry)} selects nothing replaceable: the block of {dense[0]} reads its weight itself"
    example = f"such as {linears[0]}" if linears else "and this model has none"
    return (
        f"layers {quoted(entry)} selects no linear layer: use {', '.join(ROLES)}, "
        f"or a layer's name or pattern, {example}"
    )


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
