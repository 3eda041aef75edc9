"""StructuredLinear is the base class of linear layers whose weight is a structured matrix."""

from abc import abstractmethod
from collections.abc import Mapping
from math import sqrt
from typing import ClassVar

import torch
from torch import Tensor, nn


class StructuredLinear(nn.Module):
    """y = M x + bias with a structured matrix M: x (..., in_features) -> (..., out_features).

    A subclass names its kind and its options, keeps each option in an attribute of the same name, and adds the
    parameters of M behind `bias` in the state dict.

    Args:
        in_features, out_features: widths of the layer.
        bias: add a bias.
        shapes: shapes of the parameters of M, by name, for a layer that holds them itself.
    """

    kind: ClassVar[str]
    """The kind's name in a `LayerSpec`."""

    kind_name: ClassVar[str]
    """The kind's name in sentences."""

    option_names: ClassVar[tuple[str, ...]]
    """The fields of `LayerSpec` that describe this kind."""

    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool,
        shapes: Mapping[str, tuple[int, ...]],
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.register_parameter("bias", None)
        for name, shape in {**({"bias": (out_features,)} if bias else {}), **shapes}.items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))

    @property
    def weight_count(self) -> int:
        """Number of stored weights, without the bias."""
        return sum(p.numel() for p in self.parameters()) - (0 if self.bias is None else self.bias.numel())

    @property
    def macs_per_row(self) -> int:
        """Multiply-accumulates of one input vector: one for each weight, padding included."""
        return self.weight_count

    @staticmethod
    @abstractmethod
    def weight_shapes(in_features: int, out_features: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters beside `bias`, by key. Subclasses also take their options, by name.

        Raises:
            ValueError: widths or options outside their limits.
        """

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
        rest = ", ".join(f"{name}={value}" for name, value in shown.items())
        return f"in_features={self.in_features}, out_features={self.out_features}, {rest}"

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


def check_widths(in_features: int, out_features: int) -> None:
    """Raise ValueError where a width is below 1."""
    if in_features < 1 or out_features < 1:
        raise ValueError(f"in_features {in_features} and out_features {out_features} must be at least 1")


def check_nblocks(in_features: int, out_features: int, nblocks: int) -> tuple[int, int]:
    """Widths of a block, p = ceil(in/N) and s = ceil(out/N).

    Raises:
        ValueError: nblocks outside its limits, or a width below 1.
    """
    check_widths(in_features, out_features)
    if not 1 <= nblocks <= min(in_features, out_features):
        raise ValueError(f"nblocks {nblocks} must be between 1 and {min(in_features, out_features)}, the smaller width")
    return -(-in_features // nblocks), -(-out_features // nblocks)


def check_rank(in_features: int, out_features: int, rank: int | None, kind: str, least: int = 1) -> int:
    """The rank of a low-rank matrix.

    Raises:
        ValueError: none given, or one outside its limits.
    """
    if rank is None:
        raise ValueError(f"rank None: a {kind} structure needs a rank")
    if not least <= rank <= min(in_features, out_features):
        limit = min(in_features, out_features)
        raise ValueError(f"rank {rank} must be between {least} and {limit}, the smaller width")
    return rank
