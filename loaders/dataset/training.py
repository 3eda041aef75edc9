"""Training batches: augmented images from files, the same batch for the same seed, epoch and step."""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InputError
from ..headers.limits import DEFAULT_LIMITS, ImageLimits
from ..preprocess.normalise import Levels, Normaliser
from ..preprocess.spec import PreprocessSpec
from ..sandbox.sandbox import Sandbox
from .augmentation import Augmentation, Augmenter
from .counter_rng import epoch_order, random_bits, random_uniform
from .folder import read_levels

CACHE_BYTES = 2 << 30

Refused = tuple[Path, InputError]


class Sample(NamedTuple):
    """An image file and the index of its class, None where that is not known."""

    path: Path
    target: int | None


class TrainingImages:
    """Batches of augmented, normalised images; each epoch has its own order, and its incomplete last batch is dropped.

    Which images make a batch and how each is augmented are functions of seed, epoch and step, whatever the number
    of processes and workers and whatever is cached. An image that cannot be read is skipped and listed in `skipped`;
    the next readable one takes its place. If all decoded images fit into `cache_bytes`, they are decoded once, at the
    start, and those that cannot be read leave the set before batches are counted.

    Args:
        samples: image files; either all or none have a class.
        batch_size: images of a step over all processes together; with fewer images, one batch has all of them.
        rank, processes: this process takes every `processes`-th image of a batch.
        workers: processes that decode and augment; 0 does it where the batch is asked for.
        cache_bytes: how much memory decoded images may take; 0 keeps none.
        progress: called while the cache is filled, with the number of images read and of all images.

    Raises:
        ValueError: no image can be read, or the processes cannot share a batch evenly.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        spec: PreprocessSpec,
        augmentation: Augmentation,
        *,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        processes: int = 1,
        workers: int = 0,
        cache_bytes: int = CACHE_BYTES,
        limits: ImageLimits = DEFAULT_LIMITS,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.skipped: dict[Path, InputError] = {}
        self.seed, self.rank, self.processes, self.workers = seed, rank, processes, workers
        maker = _BatchMaker(list(samples), spec, Augmenter(augmentation, spec), seed, limits)
        for path, error in maker.fill_cache(cache_bytes, progress):
            self.skipped[path] = error
        if not maker.samples:
            raise ValueError(f"none of {len(samples)} images can be read")
        self.samples: Sequence[Sample] = maker.samples
        self.batch_size = min(batch_size, len(maker.samples))
        if self.batch_size % processes:
            raise ValueError(f"batch_size {self.batch_size} cannot be shared by {processes} processes evenly")
        self._maker, self._normaliser = maker, Normaliser(spec)

    @property
    def steps(self) -> int:
        """Batches in an epoch."""
        return len(self.samples) // self.batch_size

    @property
    def cached(self) -> bool:
        """Whether every image is in memory."""
        return self._maker.cache is not None

    def batches(self, epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield the batches from step `start` on: float32 (B, 3, size, size), and classes, int64 (B,), or None."""
        order = epoch_order(self.seed, epoch, len(self.samples))
        size = self.batch_size
        parts = [order[step * size : (step + 1) * size] for step in range(start, self.steps)]
        for made in self._made([_Wanted(epoch, part[self.rank :: self.processes]) for part in parts]):
            self.skipped.update(made.refused)
            yield (
                self._maker.augmenter.erase(torch.from_numpy(self._normaliser.batch(made.levels)), made.seeds),
                made.targets,
            )

    def _made(self, batches: list["_Wanted"]) -> Iterator["_Made"]:
        if self.workers == 0:
            return (self._maker[batch] for batch in batches)
        from torch.utils.data import DataLoader

        # A worker is a fork: whatever is garbage here would be ended there too, without the threads that it waits for.
        gc.collect()
        maker: Any = self._maker
        made = DataLoader(maker, batch_size=None, sampler=batches, num_workers=self.workers, collate_fn=_unchanged)
        return iter(made)


@dataclass(frozen=True)
class _Wanted:
    """Images of one batch, by index, in one epoch."""

    epoch: int
    indices: NDArray[np.int64]


@dataclass(frozen=True)
class _Made:
    """A batch before it is normalised: levels (B, size, size, 3), classes, seeds for erasing, unreadable images."""

    levels: Levels
    targets: Tensor | None
    seeds: NDArray[np.uint64]
    refused: tuple[Refused, ...]


class _BatchMaker:
    """Decodes and augments the images of a batch; each worker process has a copy."""

    def __init__(
        self, samples: list[Sample], spec: PreprocessSpec, augmenter: Augmenter, seed: int, limits: ImageLimits
    ) -> None:
        self.samples, self.spec, self.augmenter = samples, spec, augmenter
        self.seed, self.sandbox = seed, Sandbox(limits)
        self.cache: list[Levels] | None = None

    def fill_cache(self, most: int, progress: Callable[[int, int], None] | None) -> list[Refused]:
        """Decode all images, unless they turn out not to fit; return those that cannot be read."""
        levels: list[Levels] = []
        readable: list[Sample] = []
        refused: list[Refused] = []
        held = 0
        for done, sample in enumerate(self.samples, 1):
            try:
                levels.append(self._read(sample[0]))
                readable.append(sample)
                held += levels[-1].nbytes
            except InputError as error:
                refused.append((sample[0], error))
            if held > most:
                return []
            if progress:
                progress(done, len(self.samples))
        self.samples, self.cache = readable, levels
        return refused

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, batch: _Wanted) -> _Made:
        refused: list[Refused] = []
        # Random numbers belong to the index that was asked for, not to the image that replaces an unreadable one.
        images, targets = [], []
        for index in batch.indices.tolist():
            levels, target = self._readable(index, refused)
            images.append(levels)
            targets.append(target)
        uniform = random_uniform(self.seed, batch.epoch, batch.indices, 3)
        seeds = random_bits(self.seed, batch.epoch, batch.indices, 4)[:, 3]
        return _Made(self.augmenter.levels(images, uniform, seeds), classes(targets), seeds, tuple(refused))

    def _readable(self, index: int, refused: list[Refused]) -> tuple[Levels, int | None]:
        """Return the image, or the next readable one of the set."""
        if self.cache is not None:
            return self.cache[index], self.samples[index][1]
        for place in range(index, index + len(self.samples)):
            path, target = self.samples[place % len(self.samples)]
            try:
                return self._read(path), target
            except InputError as error:
                refused.append((path, error))
        raise ValueError(f"none of {len(self.samples)} images can be read")

    def _read(self, path: Path) -> Levels:
        return read_levels(path, self.spec, self.augmenter.whole_images, self.sandbox)


def classes(targets: Sequence[int | None]) -> Tensor | None:
    """Return the classes of a batch, int64 (B,), or None if some are not known."""
    known = [target for target in targets if target is not None]
    return torch.tensor(known) if len(known) == len(targets) else None


def _unchanged(made: Any) -> Any:
    return made
