"""LayerSpec describes a structured layer as plain data; the functions here read specs off a model and apply them.

A server without torch reads specs too: only what needs layers imports them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import prod
from typing import TYPE_CHECKING, Any

from ..errors import quoted
from .shapes import KINDS as KINDS

if TYPE_CHECKING:
    import torch
    from torch import nn

    from .structured import StructuredLinear


@dataclass(frozen=True)
class LayerSpec:
    """A structured layer as plain data: the widths of the linear layer it replaces, its kind, and that kind's options.

    An option that the kind does not have must keep its default.

    Args:
        kind: kind of the matrix, one of KINDS.
        in_features, out_features: widths of the layer.
        nblocks: option of monarch and blockdiag.
        rank: option of monarch (None: fly's shapes), lowrank and pixelfly (which need one).
        bias: whether the layer has a bias.
        block_size, butterfly_size, n_factors, gating, global_size: options of pixelfly.
        shuffle: option of blockdiag.
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
            if field.name in _COMMON or field.name in KINDS[self.kind].option_names:
                continue
            value = getattr(self, field.name)
            if value != field.default:
                raise ValueError(f"{field.name} {value}: a {self.kind} structure has no such option")
        self.weight_shapes()

    @classmethod
    def from_dict(cls, values: Any) -> "LayerSpec":
        """Read the JSON form.

        Raises:
            ValueError: fields missing or unknown, or values outside their limits.
        """
        kind = values.get("kind") if isinstance(values, dict) else None
        layer = KINDS.get(kind) if isinstance(kind, str) else None
        names = {"kind", *_COMMON, *(layer.option_names if layer else (f.name for f in fields(cls)))}
        if not isinstance(values, dict) or not {"kind", "in_features", "out_features"} <= set(values) <= names:
            raise ValueError(f"a layer's structure must have {', '.join(sorted(names))}, not {quoted(values)}")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; options that the kind does not have are left out."""
        widths = {"in_features": self.in_features, "out_features": self.out_features}
        return {"kind": self.kind, **widths, **self.options, "bias": self.bias}

    @property
    def options(self) -> dict[str, Any]:
        """The options of this kind, by name."""
        return {name: getattr(self, name) for name in KINDS[self.kind].option_names}

    @property
    def weight_count(self) -> int:
        """Number of stored weights, without the bias."""
        return sum(prod(shape) for shape in self.weight_shapes().values())

    @property
    def dense_weight_count(self) -> int:
        """Number of weights of the dense layer it replaces, without the bias."""
        return self.in_features * self.out_features

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the stored weights, without the bias, by key."""
        return KINDS[self.kind].weight_shapes(self.in_features, self.out_features, **self.options)

    def build(
        self, device: "torch.device | str | None" = None, dtype: "torch.dtype | None" = None
    ) -> "StructuredLinear":
        """A freshly initialised layer."""
        from .blockdiag import BlockdiagLinear
        from .lowrank import LowRankLinear
        from .monarch import MonarchLinear
        from .pixelfly import PixelflyLinear

        classes = (BlockdiagLinear, LowRankLinear, MonarchLinear, PixelflyLinear)
        layer = next(each for each in classes if each.kind == self.kind)
        return layer(self.in_features, self.out_features, self.bias, **self.options, device=device, dtype=dtype)


_COMMON = ("in_features", "out_features", "bias")


def _check_type(name: str, value: object) -> None:
    if name in ("bias", "gating", "shuffle"):
        if type(value) is not bool:
            raise ValueError(f"{name} {quoted(value)} must be true or false")
    elif type(value) is not int and not (name == "rank" and value is None):
        raise ValueError(f"{name} {quoted(value)} must be a whole number")


def layer_specs_for(
    model: "nn.Module", names: Sequence[str], kind: str = "monarch", **options: Any
) -> dict[str, LayerSpec]:
    """Specs of one kind for the named linear layers of a model; the options are fields of `LayerSpec`.

    Raises:
        ValueError: a name that is no linear layer, or an option the kind has not or outside a layer's limits.
    """
    from .select import linear_layer

    specs = {}
    for name in names:
        linear = linear_layer(model, name)
        bias = linear.bias is not None
        try:
            specs[name] = LayerSpec(kind, linear.in_features, linear.out_features, bias=bias, **options)
        except ValueError as error:
            raise ValueError(f"layer {name}: {error}") from None
    return specs


def layer_spec_of(layer: "StructuredLinear") -> LayerSpec:
    """The spec that builds a layer like this one."""
    options = {name: getattr(layer, name) for name in layer.option_names}
    return LayerSpec(layer.kind, layer.in_features, layer.out_features, bias=layer.bias is not None, **options)


def layer_specs_of(model: "nn.Module") -> dict[str, LayerSpec]:
    """The specs of a model's structured layers, by name."""
    from .structured import StructuredLinear

    return {
        name: layer_spec_of(module) for name, module in model.named_modules() if isinstance(module, StructuredLinear)
    }


def replace_linears(model: "nn.Module", specs: Mapping[str, LayerSpec]) -> "nn.Module":
    """Replace linear layers in place by freshly initialised structured ones; returns the model.

    Raises:
        ValueError: a name that is no linear layer of the model, or one whose widths or bias differ.
    """
    from .select import linear_layer

    for name, spec in specs.items():
        linear = linear_layer(model, name)
        found = (linear.in_features, linear.out_features, linear.bias is not None)
        if found != (spec.in_features, spec.out_features, spec.bias):
            raise ValueError(
                f"layer {name}: structure is for in_features {spec.in_features}, out_features "
                f"{spec.out_features}, bias {spec.bias}; the model has {found[0]}, {found[1]}, {found[2]}"
            )
    for name, spec in specs.items():
        weight = linear_layer(model, name).weight
        model.set_submodule(name, spec.build(weight.device, weight.dtype).train(model.training))
    return model
