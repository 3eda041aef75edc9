"""Int8 weights in memory: a quarter of float32's bytes, expanded anew by every forward that reads them.

torchao's layers do the same for nn.Linear alone, through tensors of their own class, which neither safetensors nor the
packed factors of Monarch layers take.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..bundle.storage import quantised


class Expanded(nn.Module):
    """Makes a weight of its int8 values.

    Args:
        scale: float32, one for each output channel, of a shape that broadcasts to the values'.
        rest: columns of the weight behind those that are int8, as they are; a bias that was packed with it.
        dtype: of the weight.
    """

    scale: Tensor
    rest: Tensor | None

    def __init__(self, scale: Tensor, rest: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("scale", scale)
        self.register_buffer("rest", rest)
        self.dtype = dtype

    def forward(self, values: Tensor) -> Tensor:
        # Rounded to the dtype once, as a weight that was expanded on loading is.
        weight = values.to(torch.float32).mul_(self.scale).to(self.dtype)
        return weight if self.rest is None else torch.cat([weight, self.rest], dim=-1)


def hold_int8(module: nn.Module, names: Sequence[str], dtype: torch.dtype, *, columns: int | None = None) -> None:
    """Hold float32 parameters or buffers of `module` as int8, in place; whoever reads them finds them expanded.

    Weights that were read from int8 become the same int8 again: see `storage.quantised`.

    Args:
        names: of weights whose output channels are their rows, or a convolution's filters.
        dtype: that they are read in.
        columns: of a matrix that are int8, the first of them; the others stay as they are.
    """
    for name in names:
        weight = getattr(module, name).detach()
        rest = None
        if columns is not None and columns < weight.shape[-1]:
            weight, rest = weight[..., :columns], weight[..., columns:].clone()
        values, scale = quantised(weight, torch.float32)
        is_parameter = name in module._parameters
        setattr(module, name, nn.Parameter(values, requires_grad=False) if is_parameter else values)
        # unsafe, since torch expects the dtype to stay
        parametrize.register_parametrization(module, name, Expanded(scale, rest, dtype), unsafe=True)
