"""Normalises levels 0..255 to model input as torchvision's ToTensor and Normalize do, bit for bit."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import LoaderError
from .spec import PreprocessSpec


class Normaliser:
    """Writes (level / 255 - mean) / std, each step rounded to float32 as torchvision does."""

    def __init__(self, spec: PreprocessSpec) -> None:
        self._mean = torch.tensor(spec.mean, dtype=torch.float32).view(3, 1, 1)
        self._std = torch.tensor(spec.std, dtype=torch.float32).view(3, 1, 1)

    def write_crop(self, levels: bytes, out: Tensor) -> None:
        """Normalise a crop that a `Sandbox` made, RGB levels (S, S, 3), into `out`, float32 (3, S, S).

        Raises:
            LoaderError: the crop is of another size than `out`; the image is not at fault.
        """
        size = out.shape[-1]
        if len(levels) != 3 * size**2:
            raise LoaderError(f"the crop has {len(levels)} bytes: the model takes {size}x{size} px of 3 bytes")
        pixels = torch.frombuffer(bytearray(levels), dtype=torch.uint8)
        self.write(pixels.view(size, size, 3).permute(2, 0, 1), out)

    def batch(self, levels: NDArray[np.uint8]) -> Tensor:
        """Normalise levels (B, S, S, 3) to float32 (B, 3, S, S), contiguous."""
        pixels = torch.from_numpy(levels).permute(0, 3, 1, 2).contiguous()
        return pixels.float().div_(255).sub_(self._mean).div_(self._std)

    def write(self, levels: Tensor, out: Tensor) -> None:
        """Normalise into `out`.

        Args:
            levels: uint8 (3, S, S), any strides.
            out: float32 (3, S, S).
        """
        torch.div(levels, 255.0, out=out)
        out.sub_(self._mean).div_(self._std)
