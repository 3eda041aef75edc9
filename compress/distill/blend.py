"""Lets structured layers take over from dense ones gradually: sparse to dense (arXiv 2204.00595, 4.2) backwards."""

import torch
from torch import Tensor, nn

from ...models.layers.structured import StructuredLinear


class BlendedLinear(nn.Module):
    """A structured layer beside the dense one that it replaces: y = share structured(x) + (1 - share) dense(x).

    `share` rises from 0 to 1, by the same at each forward with gradients. It is a buffer, so a saved state has it.

    Args:
        dense: is not trained.
        steps: forwards with gradients after which the structured layer is alone.
    """

    share: Tensor

    def __init__(self, structured: StructuredLinear, dense: nn.Linear, steps: int) -> None:
        super().__init__()
        self.structured, self.dense, self.steps = structured, dense, steps
        self.register_buffer("share", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        share = float(self.share)
        y: Tensor = self.structured(x)
        if share >= 1:
            return y
        if torch.is_grad_enabled():
            with torch.no_grad():
                self.share += 1 / self.steps
        before = self.dense(x)
        return before + share * (y - before)


def blend(model: nn.Module, dense: nn.Module, steps: int) -> None:
    """Put the layers of `dense`, which is not trained, beside the structured ones of `model` that replace them."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, StructuredLinear) and isinstance(before := dense.get_submodule(name), nn.Linear):
            model.set_submodule(name, BlendedLinear(layer, before, steps))


def unblend(model: nn.Module) -> None:
    """Leave the structured layers alone."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, BlendedLinear):
            model.set_submodule(name, layer.structured)
