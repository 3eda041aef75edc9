"""Normalises levels 0..255 to model input as torchvision's ToTensor and Normalize do, bit for bit."""

import numpy as np
from numpy.typing import NDArray

from ..errors import LoaderError
from .spec import PreprocessSpec

Levels = NDArray[np.uint8]
NormalisedPixels = NDArray[np.float32]


class Normaliser:
    """Writes (level / 255 - mean) / std, each step rounded to float32 as torchvision does."""

    def __init__(self, spec: PreprocessSpec) -> None:
        self._mean = np.array(spec.mean, np.float32)[:, None, None]
        self._std = np.array(spec.std, np.float32)[:, None, None]

    def write_crop(self, levels: bytes, out: NormalisedPixels) -> None:
        """Normalise a crop that a `Sandbox` made, RGB levels (S, S, 3), into `out`, float32 (3, S, S).

        Raises:
            LoaderError: the crop is of another size than `out`; the image is not at fault.
        """
        size = out.shape[-1]
        if len(levels) != 3 * size**2:
            raise LoaderError(f"the crop has {len(levels)} bytes: the model takes {size}x{size} px of 3 bytes")
        self.write(np.frombuffer(levels, np.uint8).reshape(size, size, 3), out)

    def batch(self, levels: Levels) -> NormalisedPixels:
        """Normalise levels (B, S, S, 3) to float32 (B, 3, S, S), contiguous."""
        count, height, width, channels = levels.shape
        pixels = np.empty((count, channels, height, width), np.float32)
        for image, out in zip(levels, pixels, strict=True):
            self.write(image, out)
        return pixels

    def write(self, levels: Levels, out: NormalisedPixels) -> None:
        """Normalise into `out`.

        Args:
            levels: (S, S, 3), any strides.
            out: (3, S, S).
        """
        np.divide(levels.transpose(2, 0, 1), np.float32(255), out=out, dtype=np.float32)
        np.subtract(out, self._mean, out=out)
        np.divide(out, self._std, out=out)
