"""A linear layer in 8 bits (W8A8): its definition, and its exact sums in plain PyTorch.

Activations have a static scale a channel, weights one an output: y = scale * sum(w8 * (x8 - zero)) + bias. Integers are
those of the CPU's int8 program (`cpu/quantise.py`); here they lie from -128 to 127, where that has them from 0 to 255.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import ClassVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor

WIDTHS = 16
"""It divides a layer's widths: a row is loaded 16 bytes at a time."""

MOST_FP8 = 448.0
"""The largest number of float8_e4m3fn."""

SMALLEST = float(torch.finfo(torch.float32).tiny)
TYPES = (torch.int8, torch.float8_e4m3fn)


@dataclass(frozen=True, eq=False)
class QuantizedDense:
    """y = W x + bias in 8 bits: weight (out, in) int8 or float8_e4m3fn, scale and bias (out,), of the input (in,).

    Args:
        scale: what a weight's 1 is worth, where its inputs are the quantised ones: a channel's scale is in the weight.
        step: what 1 of a quantised input is worth.
        zero: the quantised input from 0 to 255 that stands for 0; 128 for float8_e4m3fn.

    Raises:
        ValueError: the kernels cannot take it; says why in a line.
    """

    weight: Tensor
    scale: Tensor
    bias: Tensor
    step: Tensor
    zero: Tensor
    layouts: WeakValueDictionary[Hashable, object] = field(default_factory=WeakValueDictionary, init=False, repr=False)
    kind: ClassVar[str] = "quantized"

    def __post_init__(self) -> None:
        if self.weight.dtype not in TYPES or self.weight.dim() != 2:
            raise ValueError(f"a weight {tuple(self.weight.shape)} of {self.weight.dtype}")
        if self.in_features % WIDTHS or self.out_features % WIDTHS or not self.weight.numel():
            raise ValueError(f"{WIDTHS} does not divide its widths {self.in_features} and {self.out_features}")
        for name, width in {"scale": 0, "bias": 0, "step": 1, "zero": 1}.items():
            values = getattr(self, name)
            if values.dtype != torch.float32 or values.shape != self.weight.shape[width : width + 1]:
                raise ValueError(f"its {name} {tuple(values.shape)} of {values.dtype} does not fit its weight")
            if not bool(values.isfinite().all()):
                raise ValueError(f"its {name} has NaN or infinity")
            if name in ("scale", "step") and float(values.min()) < SMALLEST:
                raise ValueError(f"its {name} has a value that is zero, negative or subnormal")
        if not bool(((self.zero >= 0) & (self.zero <= 255)).all()):
            raise ValueError("its zero is not from 0 to 255")

    @property
    def in_features(self) -> int:
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:
        return self.weight.shape[0]

    def describe(self) -> str:
        return f"{str(self.weight.dtype).removeprefix('torch.')}({self.in_features}>{self.out_features})"

    def packed(self) -> list[Tensor]:
        """Return weight, scale, bias with the zeros' share, 1 / step, and zero, in float32 but the weight."""
        share = self.weight.double() @ (128 - self.zero.double())
        bias = self.bias.double() + self.scale.double() * share
        return [self.weight.contiguous(), self.scale, bias.float(), self.step.reciprocal(), self.zero]

    def value(self, x: Tensor) -> Tensor:
        """Compute the layer by its definition: x (..., in) -> (..., out) in the dtype of x; sums are exact."""
        weight, scale, bias, inverse, zero = (tensor.to(x.device) for tensor in self.packed())
        sums = quantize(x, inverse, zero, weight.dtype).double() @ weight.double().T
        return (sums * scale + bias).to(x.dtype)

    def saturated(self, x: Tensor) -> int:
        """Count the values of x (..., in) that are beyond what int8 holds."""
        scaled = (x.double() / self.step.to(x.device) + self.zero.to(x.device)).round()
        return int(((scaled < 0) | (scaled > 255)).sum())


def quantize(x: Tensor, inverse: Tensor, zero: Tensor, dtype: torch.dtype) -> Tensor:
    """Round x (..., C) to 8 bits: int8 or float8_e4m3fn."""
    scaled = x.to(torch.promote_types(x.dtype, torch.float32)) * inverse
    if dtype == torch.int8:
        return (scaled + zero).round().clamp(0, 255).sub(128).nan_to_num(-128.0).to(dtype)
    return scaled.clamp(-MOST_FP8, MOST_FP8).to(dtype)


def sums_of(x8: Tensor, w8: Tensor) -> Tensor:
    """Return x8 (M, K) times w8 (N, K) transposed, float32: int8's sums are exact until then; cuBLASLt's on CUDA."""
    if x8.dtype == torch.int8:
        if x8.device.type == "cuda" and len(x8) <= 16:  # which it refuses
            return torch._int_mm(torch.cat([x8, x8.new_zeros(32, x8.shape[1])]), w8.t())[: len(x8)].float()
        return torch._int_mm(x8, w8.t()).float()
    if x8.device.type == "cuda":
        unit = torch.ones((), device=x8.device)
        return torch._scaled_mm(x8, w8.t(), unit, unit, out_dtype=torch.float32)
    return x8.float() @ w8.float().T
