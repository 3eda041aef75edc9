"""Evaluation batches: images in their order, prepared as the server prepares them, kept in memory where they fit."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..headers.limits import DEFAULT_LIMITS, ImageLimits
from ..preprocess.normalise import Levels, Normaliser
from ..preprocess.spec import PreprocessSpec
from ..sandbox.sandbox import Sandbox
from .folder import read_levels
from .training import CACHE_BYTES, Sample, classes


class PreparedImages:
    """Normalised batches of images as the model sees them in evaluation; can be iterated over repeatedly.

    An image that cannot be read is left out and listed in `skipped`.

    Args:
        samples: image files and their classes; either all or none have a class.
        cache_bytes: how much memory decoded images may take; what does not fit is decoded each time.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        spec: PreprocessSpec,
        batch_size: int,
        *,
        cache_bytes: int = CACHE_BYTES,
        limits: ImageLimits = DEFAULT_LIMITS,
    ) -> None:
        self.samples, self.spec, self.batch_size = list(samples), spec, batch_size
        self._sandbox = Sandbox(limits)
        self.skipped: dict[Path, InputError] = {}
        self._cache: dict[Path, Levels] = {}
        self._room, self._normaliser = cache_bytes, Normaliser(spec)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield float32 (B, 3, size, size), and classes, int64 (B,), or None; skip a batch without a readable image."""
        for first in range(0, len(self.samples), self.batch_size):
            levels, targets = [], []
            for path, target in self.samples[first : first + self.batch_size]:
                image = self._image(path)
                if image is not None:
                    levels.append(image)
                    targets.append(target)
            if levels:
                yield torch.from_numpy(self._normaliser.batch(np.stack(levels))), classes(targets)

    def _image(self, path: Path) -> Levels | None:
        if path in self.skipped:
            return None
        cached = self._cache.get(path)
        if cached is not None:
            return cached
        try:
            image = read_levels(path, self.spec, whole=False, sandbox=self._sandbox)
        except InputError as error:
            self.skipped[path] = error
            return None
        if image.nbytes <= self._room:
            self._cache[path] = image
            self._room -= image.nbytes
        return image
