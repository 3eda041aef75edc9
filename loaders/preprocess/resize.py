"""Resizes 8-bit levels and cuts out what the model sees, with the same bits as if Pillow did."""

import numpy as np
from numpy.typing import NDArray

from ...kernels.images.resize import CroppedAxis, PicturePart, part_read, resize
from .spec import Geometry


def part_of_crop(size: tuple[int, int], target: Geometry, interpolation: str, scale: int = 1) -> PicturePart:
    """Return the part that `resize_crop` reads of a stored picture, of (width, height) px, decoded at 1/scale of it."""
    return part_read(*_axes(size, target, scale), bilinear=interpolation == "bilinear")


def resize_crop(
    pixels: NDArray[np.uint8],
    target: Geometry,
    interpolation: str,
    part: PicturePart | None = None,
    size: tuple[int, int] | None = None,
) -> NDArray[np.uint8]:
    """Resize and crop.

    Args:
        pixels: RGB (height, width, 3).
        target: levels are rounded between the two passes in the order that it says.
        part: what the pixels are of the picture; None: the whole picture.
        size: (width, height) of the picture, px, where it was decoded at a whole fraction of that, rounded up.

    Returns:
        uint8 (size, size, 4), any strides: RGB and a byte that means nothing; black where the crop is larger than the
        resized image.

    Raises:
        CpuLibraryError: the library of CPU kernels cannot be used here.
    """
    part = part or PicturePart.whole(pixels.shape[1], pixels.shape[0])
    size = size or part[:2]
    if target.columns_first:  # the kernel resizes rows first: so it gets the transposed picture
        turned = Geometry(target.resize_height, target.resize_width, target.top, target.left, target.size)
        part = PicturePart(part.height, part.width, part.top, part.left, part.bottom, part.right)
        return resize_crop(pixels.transpose(1, 0, 2), turned, interpolation, part, size[::-1]).transpose(1, 0, 2)
    across, down = _axes(size, target, -(-size[0] // part.width))
    crop = resize(pixels, across, down, bilinear=interpolation == "bilinear", part=part)
    if crop.shape[:2] == (target.size, target.size):
        return crop
    padded = np.zeros((target.size, target.size, 4), np.uint8)
    top, left = max(-target.top, 0), max(-target.left, 0)
    padded[top : top + down.kept, left : left + across.kept] = crop
    return padded


def _axes(size: tuple[int, int], target: Geometry, scale: int) -> tuple[CroppedAxis, CroppedAxis]:
    return (
        _kept(size[0], target.resize_width, target.left, target.size, scale),
        _kept(size[1], target.resize_height, target.top, target.size, scale),
    )


def _kept(length: int, resized: int, start: int, size: int, scale: int) -> CroppedAxis:
    """The part of an axis that lies in the crop; its last pixel at 1/scale may be of fewer pixels than the others."""
    first = max(start, 0)
    extent = 0.0 if length % scale == 0 else length / scale
    return CroppedAxis(-(-length // scale), resized, first, min(start + size, resized) - first, extent)
