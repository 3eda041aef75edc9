"""BatchSource: where batches come from, as a function of the epoch and the step in it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .randomness import seed_of

Batch = tuple[Tensor, Tensor | None]
"""Normalised images (B, 3, H, W) and their classes, int64 (B,), or None."""


class BatchSource(Protocol):
    """Batches of one process; the same epoch and step always give the same batch."""

    @property
    def steps(self) -> int:
        """Batches in an epoch."""
        ...

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """The batches of `epoch` from its step `start` on."""
        ...


@dataclass(frozen=True)
class TensorSource:
    """Batches of images that are in memory and prepared already, in an order of each epoch's own.

    Args:
        images: (N, 3, H, W).
        targets: int64 (N,), or None.
        batch_size: of all processes together; an epoch's rest is dropped, but fewer images make one batch.
        seed: of the order.
        rank, processes: this process takes every `processes`-th image of each batch.
    """

    images: Tensor
    targets: Tensor | None
    batch_size: int
    seed: int = 0
    rank: int = 0
    processes: int = 1

    @property
    def steps(self) -> int:
        return max(1, len(self.images) // self.batch_size)

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed_of(self.seed, epoch))
        order = torch.randperm(len(self.images), generator=generator)
        for step in range(start, self.steps):
            chosen = order[step * self.batch_size : (step + 1) * self.batch_size][self.rank :: self.processes]
            yield self.images[chosen], None if self.targets is None else self.targets[chosen]
