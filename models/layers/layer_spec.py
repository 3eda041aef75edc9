"""LayerSpec describes a structured layer as plain data, which a server without torch reads too."""

from dataclasses import dataclass, fields
from math import prod
from typing import Any

from ..errors import quoted
from .shapes import KINDS as KINDS


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


_COMMON = ("in_features", "out_features", "bias")


def _check_type(name: str, value: object) -> None:
    if name in ("bias", "gating", "shuffle"):
        if type(value) is not bool:
            raise ValueError(f"{name} {quoted(value)} must be true or false")
    elif type(value) is not int and not (name == "rank" and value is None):
        raise ValueError(f"{name} {quoted(value)} must be a whole number")
