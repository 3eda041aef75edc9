"""Normalises levels 0..255 to model input as torchvision's ToTensor and Normalize do, bit for bit."""

import numpy as np
from numpy.typing import NDArray

from ...kernels.cpu.uint8_images import normalise, normalised
from .spec import PreprocessSpec

Levels = NDArray[np.uint8]
NormalisedPixels = NDArray[np.float32]


class Normaliser:
    """Writes (level / 255 - mean) / std, each step rounded to float32 as torchvision does."""

    def __init__(self, spec: PreprocessSpec) -> None:
        self.normal = np.array([spec.mean, spec.std], np.float32)

    def batch(self, levels: Levels) -> NormalisedPixels:
        """Normalise levels (B, S, S, 3 or more) to float32 (B, 3, S, S), contiguous."""
        return normalised(levels, self.normal)

    def write(self, levels: Levels, out: NormalisedPixels) -> None:
        """Normalise levels (S, S, 3 or more) of any strides into `out`, (3, S, S)."""
        normalise(levels, self.normal, out)
