"""Pictures as 8-bit levels, which the CPU kernels normalise while they read them into a model's first layer."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Uint8Images:
    """A batch of crops that are not normalised yet: a third of the bytes of the float32 images that it stands for.

    As an array (`np.asarray`) it is those images, (n, 3, size, size), for whoever reads nothing else.

    Args:
        pixels: uint8 (n, size, size, 4): red, green, blue, and a byte that means nothing.
        normal: float32 (2, 3), contiguous: mean and standard deviation of each colour.

    Raises:
        ValueError: `normal` is of another shape or type.
    """

    pixels: NDArray[np.uint8]
    normal: NDArray[np.float32]

    def __post_init__(self) -> None:
        normal = self.normal
        if normal.shape != (2, 3) or normal.dtype != np.float32 or not normal.flags.c_contiguous:
            raise ValueError(f"mean and deviation {normal.shape} of {normal.dtype}: contiguous float32 (2, 3) is taken")

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, images: slice) -> "Uint8Images":
        return Uint8Images(self.pixels[images], self.normal)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.float32]:
        return normalised(self.pixels, self.normal).astype(dtype or np.float32, copy=False)


def normalised(levels: NDArray[np.uint8], normal: NDArray[np.float32]) -> NDArray[np.float32]:
    """Normalise levels (n, S, S, 3 or more) to float32 (n, 3, S, S), contiguous; see `normalise`."""
    count, height, width, _ = levels.shape
    images = np.empty((count, 3, height, width), np.float32)
    for image, out in zip(levels, images, strict=True):
        normalise(image, normal, out)
    return images


def normalise(levels: NDArray[np.uint8], normal: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Write (level / 255 - mean) / deviation, each step rounded to float32.

    Args:
        levels: (S, S, 3 or more), any strides; no more than three are read.
        normal: float32 (2, 3): mean and deviation.
        out: float32 (3, S, S).
    """
    mean, deviation = normal[:, :, None, None]
    np.divide(levels[..., :3].transpose(2, 0, 1), np.float32(255), out=out, dtype=np.float32)
    np.subtract(out, mean, out=out)
    np.divide(out, deviation, out=out)
