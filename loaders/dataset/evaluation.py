"""PreparedImages: batches of images prepared as for evaluation, in their order, read once where they fit in memory."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..headers.validate import DEFAULT_LIMITS, Limits
from ..preprocess.spec import PreprocessSpec
from ..sandbox.sandbox import Sandbox
from .augmentation import Levels
from .folder import read_levels
from .training import CACHE_BYTES, Sample


class PreparedImages:
    """Normalised batches of images, what the model sees in evaluation; may be gone through again and again.

    An image that cannot be read is left out and listed in `skipped`.

    Args:
        samples: image files and their classes, all with one or none.
        cache_bytes: of decoded images kept in memory; past it, images are decoded each time.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        spec: PreprocessSpec,
        batch_size: int,
        *,
        cache_bytes: int = CACHE_BYTES,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.samples, self.spec, self.batch_size = list(samples), spec, batch_size
        self._sandbox = Sandbox(limits)
        self.skipped: dict[Path, InputError] = {}
        self._cache: dict[Path, Levels] = {}
        self._room = cache_bytes
        self._mean, self._std = (torch.tensor(values).view(1, 3, 1, 1) for values in (spec.mean, spec.std))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        """float32 (B, 3, size, size), and int64 (B,) or None; a batch of which nothing can be read is left out."""
        for first in range(0, len(self.samples), self.batch_size):
            levels, targets = [], []
            for path, target in self.samples[first : first + self.batch_size]:
                image = self._image(path)
                if image is not None:
                    levels.append(image)
                    targets.append(target)
            if levels:
                yield self._normalised(levels), _classes(targets)

    def _image(self, path: Path) -> Levels | None:
        if path in self.skipped:
            return None
        found = self._cache.get(path)
        if found is not None:
            return found
        try:
            image = read_levels(path, self.spec, whole=False, sandbox=self._sandbox)
        except InputError as error:
            self.skipped[path] = error
            return None
        if image.nbytes <= self._room:
            self._cache[path] = image
            self._room -= image.nbytes
        return image

    def _normalised(self, levels: list[Levels]) -> Tensor:
        pixels = torch.from_numpy(np.stack(levels)).permute(0, 3, 1, 2).contiguous()
        return pixels.float().div_(255).sub_(self._mean).div_(self._std)


def _classes(targets: list[int | None]) -> Tensor | None:
    known = [target for target in targets if target is not None]
    return torch.tensor(known) if len(known) == len(targets) else None
