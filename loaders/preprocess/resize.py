"""Resizes 8-bit levels with torch's antialiased kernel, and crops them to what the model sees."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from .spec import Geometry

# One call of the kernel beats resizing only the crop (0.42 against 0.65 ms for 500x375 px: fewer new pages),
# as long as the part that is thrown away stays small.
_ONE_CALL_EXCESS = 4
_PART_PIXELS = 1 << 24


def resize_crop(pixels: NDArray[np.uint8], target: Geometry, interpolation: str) -> NDArray[np.uint8]:
    """Resize and crop.

    Args:
        pixels: RGB (height, width, 3), writable.
        target: levels are rounded between the two passes in the order that it says, as in Pillow: the other order is
            off by 0.2 in the mean.

    Returns:
        uint8 (size, size, 3), any strides; black where the crop is larger than the resized image.
    """
    image = torch.from_numpy(pixels).permute(2, 0, 1).unsqueeze(0)  # (1, 3, H, W), channels last
    across = _Axis(-1, target.resize_width, target.left, target.size)
    down = _Axis(-2, target.resize_height, target.top, target.size)
    if target.columns_first:
        crop = _two_passes(image, down, across, interpolation)
    elif across.length * down.length > _ONE_CALL_EXCESS * target.size**2:
        crop = _two_passes(image, across, down, interpolation)
    else:
        crop = across.cut(down.cut(_interpolate(image, [down.length, across.length], interpolation)))
    levels: NDArray[np.uint8] = _padded(crop, across, down)[0].permute(1, 2, 0).numpy()
    return levels


@dataclass(frozen=True)
class _Axis:
    """One axis of the resize: its dimension in (1, 3, H, W), resized length, start and size of the crop."""

    dim: int
    length: int
    start: int
    size: int

    def cut(self, image: Tensor) -> Tensor:
        """Return the part of the resized image that is in the crop."""
        start = max(self.start, 0)
        return image.narrow(self.dim, start, min(self.start + self.size, self.length) - start)


def _two_passes(image: Tensor, first: _Axis, second: _Axis, interpolation: str) -> Tensor:
    """Resize along one axis, keep what the crop needs, resize along the other part by part.

    A 2x8000 px picture becomes a million rows: the parts keep that from being in memory at once.
    """
    lines = first.cut(_resize_axis(image, first, interpolation))
    step = max(1, _PART_PIXELS // second.length)
    parts = [second.cut(_resize_axis(part, second, interpolation)).clone() for part in lines.split(step, first.dim)]
    # Each part was a view of its whole resized axis: the clone lets the rest be freed.
    return torch.cat(parts, first.dim) if len(parts) > 1 else parts[0]


def _resize_axis(image: Tensor, axis: _Axis, interpolation: str) -> Tensor:
    size = [axis.length if dim == axis.dim else image.shape[dim] for dim in (-2, -1)]
    return _interpolate(image, size, interpolation)


def _interpolate(image: Tensor, size: list[int], interpolation: str) -> Tensor:
    if list(image.shape[-2:]) == size:
        return image
    image = image.contiguous(memory_format=torch.channels_last)  # only this layout is fast
    return F.interpolate(image, size=size, mode=interpolation, antialias=True, align_corners=False)


def _padded(crop: Tensor, across: _Axis, down: _Axis) -> Tensor:
    if crop.shape[-1] == across.size and crop.shape[-2] == down.size:
        return crop
    left, top = max(-across.start, 0), max(-down.start, 0)
    right, bottom = across.size - left - crop.shape[-1], down.size - top - crop.shape[-2]
    return F.pad(crop, (left, right, top, bottom))
