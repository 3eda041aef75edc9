"""Random layers in 8 bits."""

import torch
from torch import Tensor

from milkweed.kernels.quantized import QuantizedDense


def quantized_layer(
    inputs: int, outputs: int, *, int8: bool = True, seed: int = 0, gelu: bool = False
) -> QuantizedDense:
    """A layer for inputs of about unit size, or for those that GELU gives."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    zero = torch.full((inputs,), 128.0)
    if int8:
        weight = (normal(outputs, inputs) * 40).round().clamp(-127, 127).to(torch.int8)
        step = (normal(inputs).abs() + 3) / 127
        zero = (0.17 / step).round() if gelu else zero
    else:
        weight, step = (normal(outputs, inputs) * 40).to(torch.float8_e4m3fn), (normal(inputs).abs() + 3) / 448
    scale = (normal(outputs).abs() + 1) / (40 * inputs**0.5 * (40 if int8 else 130))
    return QuantizedDense(weight, scale, normal(outputs), step, zero)
