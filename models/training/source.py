"""Gives batches as a function of the epoch and the step in it, so that a run may go on anywhere."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

TrainingBatch = tuple[Tensor, Tensor | None]
"""Normalised images (B, 3, H, W) and their classes, int64 (B,), or None."""


def seed_of(*place: int) -> int:
    """A seed of 63 bits for a place in a run such as (seed, step, rank); neighbouring places have unrelated seeds.

    Seeds are functions of the place so that a run which goes on needs no generator's state.
    """
    text = ",".join(map(str, place)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


class BatchSource(Protocol):
    """Batches of one process; the same epoch and step always give the same batch."""

    @property
    def steps(self) -> int:
        """Batches in an epoch."""

    def batches(self, epoch: int, start: int) -> Iterator[TrainingBatch]:
        """The batches of `epoch` from its step `start` on."""


@dataclass(frozen=True)
class TensorSource:
    """Batches of images that are in memory and prepared already; each epoch has an order of its own.

    Args:
        images: (N, 3, H, W).
        targets: int64 (N,), or None.
        batch_size: images of all processes together; an epoch's rest is dropped, but fewer images make one batch.
        seed: the seed of the order.
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

    def batches(self, epoch: int, start: int) -> Iterator[TrainingBatch]:
        generator = torch.Generator().manual_seed(seed_of(self.seed, epoch))
        order = torch.randperm(len(self.images), generator=generator)
        for step in range(start, self.steps):
            chosen = order[step * self.batch_size : (step + 1) * self.batch_size][self.rank :: self.processes]
            yield self.images[chosen], None if self.targets is None else self.targets[chosen]
