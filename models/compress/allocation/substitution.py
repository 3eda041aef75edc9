"""Tries other weights in a linear layer, and puts its own back."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn


@contextmanager
def substituted(linear: nn.Linear, weight: Tensor, bias: Tensor | None) -> Iterator[None]:
    """Inside, the layer has this weight (out, in) and bias, in its own dtype."""
    before = linear.weight, linear.bias
    linear.weight = _parameter(weight, before[0])
    linear.bias = None if bias is None else _parameter(bias, before[0])  # type: ignore[assignment]
    try:
        yield
    finally:
        linear.weight, linear.bias = before


def _parameter(tensor: Tensor, like: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.detach().to(like.device, like.dtype), requires_grad=False)
