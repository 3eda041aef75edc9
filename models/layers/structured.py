"""StructuredLinear is the base class of linear layers whose weight is a structured matrix."""

from abc import abstractmethod
from collections.abc import Mapping
from math import sqrt
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .layer_spec import LayerSpec
from .shapes import KINDS


class StructuredLinear(nn.Module):
    """y = M x + bias with a structured matrix M: x (..., in_features) -> (..., out_features).

    A subclass names its kind. Options are attributes, and the parameters of M are behind `bias` in the state dict.

    Args:
        in_features, out_features: widths of the layer.
        bias: add a bias.
        options: of the kind, with the defaults of `LayerSpec`.

    Raises:
        ValueError: an option that the kind has not, or one outside its limits.
    """

    kind: ClassVar[str]
    """The kind's name, one of KINDS."""

    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        spec = LayerSpec(self.kind, in_features, out_features, bias=bias, **options)
        self.in_features, self.out_features = in_features, out_features
        for name, value in spec.options.items():
            setattr(self, name, value)
        added = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias", added)
        self.add_weights(spec.weight_shapes(), device, dtype)
        self.reset_parameters()

    def add_weights(
        self, shapes: Mapping[str, tuple[int, ...]], device: torch.device | str | None, dtype: torch.dtype | None
    ) -> None:
        """Add the parameters of M, without values."""
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))

    @property
    def weight_count(self) -> int:
        """Number of stored weights, without the bias."""
        return sum(p.numel() for p in self.parameters()) - (0 if self.bias is None else self.bias.numel())

    @property
    def macs_per_row(self) -> int:
        """Multiply-accumulates of one input vector: one for each weight, padding included."""
        return self.weight_count

    @property
    def option_names(self) -> tuple[str, ...]:
        """The fields of `LayerSpec` that describe this kind."""
        return KINDS[self.kind].option_names

    @abstractmethod
    def dense_weight(self) -> Tensor:
        """The equivalent dense weight (out_features, in_features), in the layer's dtype.

        Raises:
            ValueError: the layer is not linear in its input.
        """

    def monarch_factors(self) -> tuple[Tensor, Tensor] | None:
        """The factors w1 (K, q, p) and w2 (J, s, r) for the Monarch kernels; None where M is no Monarch matrix."""
        return None

    def extra_repr(self) -> str:
        options = {name: getattr(self, name) for name in self.option_names}
        shown = {"bias": self.bias is not None, **{name: value for name, value in options.items() if value is not None}}
        members = ", ".join(f"{name}={value}" for name, value in shown.items())
        return f"in_features={self.in_features}, out_features={self.out_features}, {members}"

    def reset_parameters(self) -> None:
        """Initialise as fly: uniform in +-1/sqrt(fan); fan is a factor's last dimension, out_features for the bias."""
        for name, factor in self.named_parameters():
            if name != "bias":
                reset_uniform(factor, factor.shape[-1])
        if self.bias is not None:
            reset_uniform(self.bias, self.out_features)


def reset_uniform(parameter: Tensor, fan: float) -> None:
    """Fill with uniform values in +-1/sqrt(fan), as fly's parameters start."""
    bound = 1 / sqrt(fan)
    nn.init.uniform_(parameter, -bound, bound)
