"""Defines what a run asks of the processes that share it, and answers for a process that runs alone."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn


class Processes(Protocol):
    """The processes of a run. A method marked "collective" must be called by all of them together."""

    rank: int
    count: int

    def wrap(self, model: nn.Module) -> nn.Module:
        """The module to call in training; `model` keeps its names. Collective."""

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors in one piece, where each process may hold a part of them. Collective."""

    def part(self, tensor: Tensor, like: Tensor) -> Tensor:
        """This process's part of a whole tensor, divided as `like` is, on its device. Collective."""

    def clip(self, parameters: Iterable[nn.Parameter], most: float) -> Tensor:
        """Scale the gradients to a norm of at most `most`; returns the norm before. Collective."""

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the processes, element by element. Collective."""

    def from_first(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        """The plain data that the first process passes; those of the others are ignored. Collective."""


class Alone:
    """A run's only process; what several do otherwise, their classes override."""

    rank = 0
    count = 1

    def wrap(self, model: nn.Module) -> nn.Module:
        return model

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(tensors)

    def part(self, tensor: Tensor, like: Tensor) -> Tensor:
        return tensor.to(like.device)

    def clip(self, parameters: Iterable[nn.Parameter], most: float) -> Tensor:
        return torch.nn.utils.clip_grad_norm_(parameters, most)

    def mean(self, values: Tensor) -> Tensor:
        return values

    def from_first(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        return dict(figures)
