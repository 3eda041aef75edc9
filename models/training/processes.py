"""Defines what a run asks of the processes that share it."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


class Processes:
    """The only process of a run. Subclasses override what several processes do differently.

    A method marked "collective" must be called by all of them together.
    """

    rank = 0
    count = 1

    def wrap(self, model: nn.Module) -> nn.Module:
        """The module to call in training; `model` keeps its names. Collective."""
        return model

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors in one piece, where each process may hold a part of them. Collective."""
        return dict(tensors)

    def part(self, tensor: Tensor, like: Tensor) -> Tensor:
        """This process's part of a whole tensor, divided as `like` is, on its device. Collective."""
        return tensor.to(like.device)

    def clip(self, parameters: Iterable[nn.Parameter], most: float) -> Tensor:
        """Scale the gradients to a norm of at most `most`; returns the norm before. Collective."""
        return torch.nn.utils.clip_grad_norm_(parameters, most)

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the processes, element by element. Collective."""
        return values

    def from_first(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        """The plain data that the first process passes; those of the others are ignored. Collective."""
        return dict(figures)
