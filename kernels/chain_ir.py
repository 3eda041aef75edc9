"""The operators of a chain (half of a transformer block) and their plain evaluation, which impls are compared with.

A chain acts on tokens x (B, N, C) and may read one more tensor: the residual that it adds, or the logarithms of its
tokens' sizes. An operator holds a checkpoint's tensors as they
are; impls pack them for their kernels (`packed` in impls/base.py).
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.nn import functional as F

from .attention import attention_reference
from .quantized import QuantizedDense
from .reference import monarch_reference
from .shapes import MonarchShape


@dataclass(frozen=True)
class Problem:
    """What a chain runs on: a device, a dtype, and `batch` images of `tokens` tokens."""

    device: torch.device
    dtype: torch.dtype
    batch: int
    tokens: int

    @property
    def rows(self) -> int:
        """Rows of the matrix products, batch * tokens."""
        return self.batch * self.tokens

    def describe(self) -> str:
        """Return dtype and sizes for cache keys; the device is in the name of the cache's file."""
        return f"{str(self.dtype).removeprefix('torch.')},{self.batch}x{self.tokens}"


class Packed:
    """Tensors that an impl made from operators; all runners that need them share them, and the last one frees them."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tuple(tensors)


Layouts = WeakValueDictionary[Hashable, Packed]


@dataclass(frozen=True, eq=False)
class LayerNorm:
    """Layer norm over the last dimension: weight and bias (C,)."""

    weight: Tensor
    bias: Tensor
    eps: float
    layouts: Layouts = field(default_factory=WeakValueDictionary, init=False, repr=False)
    kind: ClassVar[str] = "norm"

    def describe(self) -> str:
        return f"norm({len(self.weight)},{self.eps:g})"


@dataclass(frozen=True, eq=False)
class Dense:
    """y = W x + bias: weight (out, in), bias (out,) or None."""

    weight: Tensor
    bias: Tensor | None
    layouts: Layouts = field(default_factory=WeakValueDictionary, init=False, repr=False)
    kind: ClassVar[str] = "dense"

    @property
    def in_features(self) -> int:
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:
        return self.weight.shape[0]

    def describe(self) -> str:
        return f"dense({self.in_features}>{self.out_features}{_bias(self.bias)})"


@dataclass(frozen=True, eq=False)
class Monarch:
    """y = M x + bias: factors w1 (K, q, p) and w2 (J, s, r), bias (out_features,) or None.

    Raises:
        ValueError: the shapes do not fit each other.
    """

    w1: Tensor
    w2: Tensor
    bias: Tensor | None
    in_features: int
    out_features: int
    layouts: Layouts = field(default_factory=WeakValueDictionary, init=False, repr=False)
    kind: ClassVar[str] = "monarch"

    def __post_init__(self) -> None:
        self.shape.check(self.in_features, self.out_features)

    @cached_property
    def shape(self) -> MonarchShape:
        return MonarchShape.of(self.w1, self.w2)

    def on(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return w1, w2 and bias on a device."""
        return self.w1.to(device), self.w2.to(device), None if self.bias is None else self.bias.to(device)

    def describe(self) -> str:
        factors = ",".join("x".join(map(str, w.shape)) for w in (self.w1, self.w2))
        return f"monarch({self.in_features}>{self.out_features},{factors}{_bias(self.bias)})"


@dataclass(frozen=True, eq=False)
class BlockDiagonal:
    """y = (W_1 x_1, .. W_N x_N) + bias, where x_n are some channels of x.

    Args:
        weight: (N, s, p).
        inputs: (N, p), the channels of x that each block reads, int64.
        bias: (N*s,) or None.
    """

    weight: Tensor
    inputs: Tensor
    bias: Tensor | None
    layouts: Layouts = field(default_factory=WeakValueDictionary, init=False, repr=False)
    kind: ClassVar[str] = "blockdiag"

    @property
    def in_features(self) -> int:
        return self.inputs.numel()

    @property
    def out_features(self) -> int:
        return self.weight.shape[0] * self.weight.shape[1]

    def describe(self) -> str:
        return f"blockdiag({self.in_features}>{self.out_features},{len(self.weight)}{_bias(self.bias)})"


@dataclass(frozen=True, eq=False)
class Gelu:
    """GELU by the error function."""

    kind: ClassVar[str] = "gelu"

    def describe(self) -> str:
        return "gelu"


@dataclass(frozen=True, eq=False)
class SelfAttention:
    """Softmax attention on packed qkv: (B, N, 3*H*D), order q, k, v, then heads -> (B, N, H*D).

    Args:
        sized: tokens stand for several: the chain reads the logarithms of their sizes, (B, N) float32.
    """

    num_heads: int
    head_dim: int
    scale: float
    sized: bool = False
    kind: ClassVar[str] = "attention"

    def sizes(self, tensor: Tensor | None) -> Tensor | None:
        """Return the second tensor of a chain where it is the logarithms of sizes, which are then needed; else None."""
        return needed(tensor, "knows sizes") if self.sized else None

    def describe(self) -> str:
        return f"attention({self.num_heads}x{self.head_dim},{self.scale:g}{',sizes' * self.sized})"


@dataclass(frozen=True, eq=False)
class Add:
    """y = x + residual."""

    kind: ClassVar[str] = "add"

    def describe(self) -> str:
        return "add"


Linear = Dense | Monarch | BlockDiagonal
ChainOp = LayerNorm | Dense | Monarch | BlockDiagonal | QuantizedDense | Gelu | SelfAttention | Add


def _bias(bias: Tensor | None) -> str:
    return "" if bias is None else ",bias"


def kinds(segment: Sequence[ChainOp]) -> tuple[str, ...]:
    """Return the kinds of the operators, in order; impls match on them."""
    return tuple(operator.kind for operator in segment)


def describe(segment: Sequence[ChainOp]) -> str:
    """Return shapes and constants of a segment, never values: segments of equal text cost the same."""
    return "+".join(operator.describe() for operator in segment)


def adds_residual(segment: Sequence[ChainOp]) -> bool:
    """Tell whether a segment adds the residual."""
    return any(isinstance(operator, Add) for operator in segment)


def knows_sizes(segment: Sequence[ChainOp]) -> bool:
    """Tell whether a segment reads the logarithms of its tokens' sizes."""
    return any(isinstance(operator, SelfAttention) and operator.sized for operator in segment)


def evaluate(chain: Sequence[ChainOp], x: Tensor, residual: Tensor | None = None) -> Tensor:
    """Compute the chain by the operators' definitions, in the dtype of `x` (float64 for an oracle).

    Args:
        x: (B, N, C), or (M, C) if the chain has no attention.
        residual: what each Add adds, or the logarithms of the sizes; needed if an operator reads it.
    """
    for operator in chain:
        x = _value(operator, x, residual)
    return x


def _value(operator: ChainOp, x: Tensor, residual: Tensor | None) -> Tensor:
    match operator:
        case LayerNorm(weight, bias, eps):
            return F.layer_norm(x, x.shape[-1:], weight.to(x), bias.to(x), eps)
        case Dense(weight, bias):
            return F.linear(x, weight.to(x), None if bias is None else bias.to(x))
        case Monarch(w1, w2, bias):
            wide = F.pad(x, (0, operator.shape.in_extended - x.shape[-1]))
            y = monarch_reference(wide, w1.to(x), w2.to(x))[..., : operator.out_features]
            return y if bias is None else y + bias.to(x)
        case BlockDiagonal(weight, inputs, bias):
            return block_product(x, weight.to(x), inputs.to(x.device), None if bias is None else bias.to(x))
        case QuantizedDense():
            return operator.value(x)
        case Gelu():
            return F.gelu(x)
        case SelfAttention(num_heads, _, scale):
            return attention_reference(x, num_heads, scale, operator.sizes(residual))
        case Add():
            return x + needed(residual).to(x)


def block_product(x: Tensor, weight: Tensor, inputs: Tensor, bias: Tensor | None) -> Tensor:
    """Return what a `BlockDiagonal` layer gives of x (..., in)."""
    y = torch.einsum("...np,nsp->...ns", x[..., inputs], weight).flatten(-2)
    return y if bias is None else y + bias


def needed(tensor: Tensor | None, what: str = "adds a residual") -> Tensor:
    """Return the second tensor of a segment that reads one.

    Raises:
        ValueError: there is none.
    """
    if tensor is None:
        raise ValueError(f"the chain {what}, but none was given")
    return tensor
