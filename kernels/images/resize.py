"""Resizes 8-bit levels as Pillow does, to the bit, with the instruction set that the CPU has."""

import ctypes
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cpu.instruction_sets import CpuLibraryError
from ..cpu.library import resize_entry
from .scratch import Scratch

WEIGHT_BITS = 22
_SCRATCH = Scratch()


class CroppedAxis(NamedTuple):
    """What is kept of a resized axis.

    Args:
        length: of the axis before it is resized, pixels.
        resized: and after.
        start, kept: the first place that is kept of it, and how many.
        extent: the length that is resized, where the last pixel lies in the picture by a part only; 0: all of it.
    """

    length: int
    resized: int
    start: int
    kept: int
    extent: float = 0.0


class PicturePart(NamedTuple):
    """A part of a picture of width x height px: columns left to right - 1 of rows top to bottom - 1."""

    width: int
    height: int
    left: int
    top: int
    right: int
    bottom: int

    @classmethod
    def whole(cls, width: int, height: int) -> "PicturePart":
        return cls(width, height, 0, 0, width, height)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the part's RGB levels."""
        return self.bottom - self.top, self.right - self.left, 3


class Axis(NamedTuple):
    """How an axis is resized: output i is the sum of weights[i] by as many inputs from starts[i] on."""

    starts: NDArray[np.int32]
    weights: NDArray[np.int32]

    @property
    def inputs(self) -> tuple[int, int]:
        """The first input that is read, and the one behind the last."""
        return int(self.starts[0]), int(self.starts[-1]) + self.weights.shape[1]


class _Axis(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("starts", "weights")),
        *((name, ctypes.c_int32) for name in ("count", "taps")),
    )

    @classmethod
    def of(cls, axis: Axis) -> "_Axis":
        return cls(axis.starts.ctypes.data, axis.weights.ctypes.data, *axis.weights.shape)


@cache
def resize_refusal() -> str | None:
    """Say in one line why `resize` cannot be used here; None where it can. Looked once, since every picture asks."""
    try:
        resize_entry()
    except CpuLibraryError as error:
        return str(error)
    return None


def part_read(across: CroppedAxis, down: CroppedAxis, *, bilinear: bool) -> PicturePart:
    """Return the part of a picture whose pixels `resize` reads."""
    (left, right), (top, bottom) = axis(across, bilinear).inputs, axis(down, bilinear).inputs
    return PicturePart(across.length, down.length, left, top, right, bottom)


def resize(
    pixels: NDArray[np.uint8],
    across: CroppedAxis,
    down: CroppedAxis,
    *,
    bilinear: bool,
    part: PicturePart | None = None,
) -> NDArray[np.uint8]:
    """Resize RGB levels (height, width, 3) by the antialiased bicubic or bilinear filter; rows first, then columns.

    Args:
        part: what the pixels are of the picture, with all that is read of it; None: the whole picture.

    Returns:
        (down.kept, across.kept, 4): RGB and a byte that means nothing.

    Raises:
        CpuLibraryError: the library cannot be used here.
    """
    pixels, part = np.ascontiguousarray(pixels), part or PicturePart.whole(across.length, down.length)
    rows, columns = axis(down, bilinear), axis(across, bilinear)
    (left, right), (top, bottom) = columns.inputs, rows.inputs
    if pixels.shape != part.shape or pixels.dtype != np.uint8:
        raise ValueError(f"pixels {pixels.shape} of {pixels.dtype}: uint8 {part.shape} is resized")
    if left < part.left or right > part.right or top < part.top or bottom > part.bottom:
        raise ValueError(f"{part}: rows {top} to {bottom} and columns {left} to {right} are resized")
    row_bytes, width = (across.kept + 1) // 2 * 8, part.right - part.left
    scratch = _SCRATCH.bytes(row_bytes * (4 * columns.weights.shape[1] + bottom - top) + 3 * width + 1)
    out = np.empty((down.kept, row_bytes // 4, 4), np.uint8)
    columns, rows = (side._replace(starts=side.starts - at) for side, at in ((columns, part.left), (rows, part.top)))
    axes = (ctypes.byref(_Axis.of(side)) for side in (columns, rows))
    resize_entry()(pixels.ctypes.data, width, *axes, scratch.ctypes.data, out.ctypes.data)
    return out[:, : across.kept]


@lru_cache(64)
def axis(span: CroppedAxis, bilinear: bool) -> Axis:
    """Return the weights of an axis: those of Pillow's `Resample.c`, in its order of float64 operations."""
    scale = (span.extent or span.length) / span.resized
    stretch = max(scale, 1.0)
    support = (1.0 if bilinear else 2.0) * stretch
    centres = (np.arange(span.start, span.start + span.kept) + 0.5) * scale
    first = np.maximum((centres - support + 0.5).astype(np.int64), 0)
    behind = np.minimum((centres + support + 0.5).astype(np.int64), span.length)
    taps = int((behind - first).max())
    starts = np.minimum(first, span.length - taps)
    places = starts[:, None] + np.arange(taps)
    inside = (places >= first[:, None]) & (places < behind[:, None])
    weights = np.where(inside, _filter((places - centres[:, None] + 0.5) * (1 / stretch), bilinear), 0.0)
    weights /= weights.cumsum(1)[:, -1:]  # summed one after the other
    whole = np.trunc(weights * (1 << WEIGHT_BITS) + np.copysign(0.5, weights))
    return Axis(starts.astype(np.int32), whole.astype(np.int32))


def _filter(x: NDArray[np.float64], bilinear: bool) -> NDArray[np.float64]:
    x = np.abs(x)
    if bilinear:
        return np.maximum(1.0 - x, 0.0)
    near, far = ((1.5 * x - 2.5) * x) * x + 1.0, (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))
