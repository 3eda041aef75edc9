"""Int8 weights: how they are made, and how layers hold them in memory and expand them at every forward.

torchao's layers do the same for nn.Linear alone, through tensors of their own class, which neither safetensors nor the
packed factors of Monarch layers take.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

LEVELS = 127
"""int8 from -127 to 127: the same on both sides of zero."""

SMALLEST_SCALE = torch.finfo(torch.float32).tiny


def quantised(weight: Tensor, scales: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor]:
    """int8 values of a float32 weight's shape, and scales that broadcast to it: their product is the weight.

    There is a scale for each output channel, which is a row of a matrix or block (..., out, in) or a filter of a
    convolution (out, in, h, w). No weight is off by more than half its scale: a scale rounded to bfloat16 still
    reaches its largest weight. The product has 15 bits: float32 holds it exactly, and it becomes the same int8 again.

    Args:
        scales: dtype of the scales, float32 or bfloat16.
    """
    scale = weight.abs().amax(channel_dims(weight), keepdim=True).div(LEVELS).clamp(min=SMALLEST_SCALE).to(scales)
    return weight.div(scale.float()).round().to(torch.int8), scale


def channel_dims(weight: Tensor) -> tuple[int, ...] | int:
    """The dimensions of one output channel of a weight."""
    return (1, 2, 3) if weight.dim() == 4 else -1


class Expanded(nn.Module):
    """Computes a weight from its int8 values.

    Args:
        scale: float32, one for each output channel, of a shape that broadcasts to the values'.
        tail: last columns of the weight, which are not int8: a bias that was packed with it.
        dtype: dtype of the weight.
    """

    scale: Tensor
    tail: Tensor | None

    def __init__(self, scale: Tensor, tail: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("scale", scale)
        self.register_buffer("tail", tail)
        self.dtype = dtype

    def forward(self, values: Tensor) -> Tensor:
        # Rounded to the dtype once, as a weight that was expanded on loading is.
        weight = values.to(torch.float32).mul_(self.scale).to(self.dtype)
        return weight if self.tail is None else torch.cat([weight, self.tail], dim=-1)


def hold_int8(module: nn.Module, names: Sequence[str], dtype: torch.dtype, *, columns: int | None = None) -> None:
    """Hold float32 parameters or buffers of `module` as int8, in place; reading one gives the expanded weight.

    Weights that were read from int8 become the same int8 again (see `quantised`).

    Args:
        names: attributes of `module`, each a matrix, a stack of matrices or a convolution's filters.
        dtype: dtype of the expanded weights.
        columns: how many columns of each matrix become int8, all when None; those behind stay as they are.
    """
    for name in names:
        weight = getattr(module, name).detach()
        tail = None
        if columns is not None and columns < weight.shape[-1]:
            weight, tail = weight[..., :columns], weight[..., columns:].clone()
        values, scale = quantised(weight, torch.float32)
        is_parameter = name in module._parameters
        setattr(module, name, nn.Parameter(values, requires_grad=False) if is_parameter else values)
        # "unsafe", because the dtype changes.
        parametrize.register_parametrization(module, name, Expanded(scale, tail, dtype), unsafe=True)
