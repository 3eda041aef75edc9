"""Keeps a running average of a model's weights, which often answers better than the last weights."""

from collections.abc import Mapping

import torch
from torch import Tensor


class Ema:
    """Exponential moving average of floating tensors; others (counters) are copied.

    Step t moves it by 1 - min(decay, (1 + t) / (10 + t)), so that it follows quickly at first and forgets the random
    start.

    Args:
        decay: 0..1, the share of the average that a step keeps in the long run.
        tensors: the weights that it starts from, by name; they are copied.
    """

    def __init__(self, decay: float, tensors: Mapping[str, Tensor]) -> None:
        self.decay = decay
        self.tensors = {name: tensor.detach().clone() for name, tensor in tensors.items()}

    @torch.no_grad()
    def update(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Take in the weights after step `step` (from 0)."""
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        floating = [name for name, average in self.tensors.items() if average.is_floating_point()]
        # Parameters may be divided among processes and buffers not: one call for each sort.
        for sort in {type(self.tensors[name]) for name in floating}:
            names = [name for name in floating if type(self.tensors[name]) is sort]
            torch._foreach_lerp_(
                [self.tensors[name] for name in names], [tensors[name].detach() for name in names], weight
            )
        for name in self.tensors.keys() - set(floating):
            self.tensors[name].copy_(tensors[name])
