"""Which linear layers of a model are structured, and how: selecting them, describing them, replacing them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from .errors import quoted
from .monarch import MonarchLinear, monarch_shapes

KINDS = ("monarch",)
LATER_KINDS = ("pixelfly", "lowrank", "blockdiag")

_CELL = r"(?:layers\.\d+\.NC|blocks)\.\d+\."
ROLES = {
    "mlp": re.compile(_CELL + r"mlp\.fc[12]"),
    "qkv": re.compile(_CELL + r"attn\.qkv"),
    "proj": re.compile(_CELL + r"attn\.proj"),
}
"""Layers by their part in a block: ViTAE's normal cells (not its reduction cells), ViT's blocks."""


@dataclass(frozen=True)
class LayerStructure:
    """One replaced linear layer: what it replaces and by which structured matrix.

    Args:
        kind: of the matrix, one of KINDS.
        in_features, out_features: widths of the layer.
        nblocks, rank: as in `MonarchLinear`.
        bias: whether the layer has one.
    """

    kind: str
    in_features: int
    out_features: int
    nblocks: int = 4
    rank: int | None = None
    bias: bool = True

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            later = "not supported yet" if self.kind in LATER_KINDS else "unknown"
            raise ValueError(f"structure kind {quoted(self.kind)} is {later}: must be one of {', '.join(KINDS)}")
        for name in ("in_features", "out_features", "nblocks", "rank"):
            value = getattr(self, name)
            if not (type(value) is int or (name == "rank" and value is None)):
                raise ValueError(f"{name} {quoted(value)} must be a whole number")
        if type(self.bias) is not bool:
            raise ValueError(f"bias {quoted(self.bias)} must be true or false")
        monarch_shapes(self.in_features, self.out_features, self.nblocks, self.rank)

    @classmethod
    def from_dict(cls, values: Any) -> "LayerStructure":
        """From its JSON form.

        Raises:
            ValueError: fields missing or unknown, or values outside their limits.
        """
        names = {field.name for field in fields(cls)}
        if not isinstance(values, dict) or not {"kind", "in_features", "out_features"} <= set(values) <= names:
            raise ValueError(f"a layer's structure must have {', '.join(sorted(names))}, not {quoted(values)}")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Its JSON form."""
        return asdict(self)

    @property
    def weight_count(self) -> int:
        """Stored weights, without the bias; also the multiply-accumulates for one token."""
        (blocks1, q, p), (blocks2, s, r) = monarch_shapes(self.in_features, self.out_features, self.nblocks, self.rank)
        return blocks1 * q * p + blocks2 * s * r

    @property
    def dense_weight_count(self) -> int:
        """Weights of the dense layer it replaces, without the bias."""
        return self.in_features * self.out_features

    def build(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> MonarchLinear:
        """The layer itself, freshly initialised."""
        return MonarchLinear(self.in_features, self.out_features, self.bias, self.nblocks, self.rank, device, dtype)


def select_linears(model: nn.Module, layers: Sequence[str]) -> list[str]:
    """Names of the dense linear layers that `layers` asks for, in the model's order.

    Args:
        layers: roles (`mlp`, `qkv`, `proj`), full names (`head`), or patterns (`blocks.1?.mlp.*`).

    Raises:
        ValueError: no entries, or one that selects nothing.
    """
    linears = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise ValueError(f"no layers selected: name at least one of {', '.join(ROLES)}, or a layer")
    chosen: set[str] = set()
    for entry in layers:
        matched = [name for name in linears if _matches(entry, name)]
        if not matched:
            raise ValueError(_nothing_selected(model, entry, linears))
        chosen.update(matched)
    return [name for name in linears if name in chosen]


def monarch_structure(
    model: nn.Module, names: Sequence[str], nblocks: int = 4, rank: int | None = None
) -> dict[str, LayerStructure]:
    """Monarch structures for the named linear layers of a model.

    Raises:
        ValueError: a name that is no linear layer, or nblocks or rank outside a layer's limits.
    """
    structure = {}
    for name in names:
        linear = _linear(model, name)
        try:
            structure[name] = LayerStructure(
                "monarch", linear.in_features, linear.out_features, nblocks, rank, linear.bias is not None
            )
        except ValueError as error:
            raise ValueError(f"layer {name}: {error}") from None
    return structure


def replace_linears(model: nn.Module, structure: Mapping[str, LayerStructure]) -> nn.Module:
    """Replace linear layers in place by freshly initialised structured ones; returns the model.

    Raises:
        ValueError: a name that is no linear layer of the model, or one whose widths or bias differ.
    """
    for name, layer in structure.items():
        linear = _linear(model, name)
        found = (linear.in_features, linear.out_features, linear.bias is not None)
        if found != (layer.in_features, layer.out_features, layer.bias):
            raise ValueError(
                f"layer {name}: structure is for in_features {layer.in_features}, out_features "
                f"{layer.out_features}, bias {layer.bias}; the model has {found[0]}, {found[1]}, {found[2]}"
            )
    for name, layer in structure.items():
        weight = _linear(model, name).weight
        model.set_submodule(name, layer.build(weight.device, weight.dtype).train(model.training))
    return model


def structure_of(model: nn.Module) -> dict[str, LayerStructure]:
    """The structured layers a model has."""
    return {
        name: LayerStructure(
            "monarch",
            module.in_features,
            module.out_features,
            module.nblocks,
            module.rank,
            module.bias is not None,
        )
        for name, module in model.named_modules()
        if isinstance(module, MonarchLinear)
    }


def _matches(entry: str, name: str) -> bool:
    role = ROLES.get(entry)
    return role.fullmatch(name) is not None if role else fnmatchcase(name, entry)


def _nothing_selected(model: nn.Module, entry: str, linears: Sequence[str]) -> str:
    structured = next((name for name in structure_of(model) if _matches(entry, name)), None)
    if structured is not None:
        return f"layers {quoted(entry)} selects nothing dense: {structured} is a Monarch layer already"
    example = f"such as {linears[0]}" if linears else "and this model has none"
    return (
        f"layers {quoted(entry)} selects no linear layer: use {', '.join(ROLES)}, "
        f"or a layer's name or pattern, {example}"
    )


def _linear(model: nn.Module, name: str) -> nn.Linear:
    try:
        module = model.get_submodule(name)
    except AttributeError:
        raise ValueError(f"layer {quoted(name)}: the model has no such layer") from None
    if not isinstance(module, nn.Linear):
        raise ValueError(f"layer {quoted(name)} is a {type(module).__name__}, not a dense linear layer")
    return module
