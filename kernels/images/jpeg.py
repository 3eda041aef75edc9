"""Decodes no more of a JPEG than the part that is looked at, where the library was built with libjpeg-turbo."""

import ctypes
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ..cpu.instruction_sets import CpuLibraryError
from ..cpu.library import jpeg_entry
from .resize import PicturePart
from .scratch import Scratch

_MARGIN = 2  # columns at the edges of what is decoded have other chroma than in the whole picture
_WIDEST_MCU = 32
_LEVELS = Scratch()


@cache
def part_refusal() -> str | None:
    """Say in one line why `decode_part` cannot be used here; None where it can."""
    try:
        jpeg_entry()
    except CpuLibraryError as error:
        return str(error)
    return None


def decode_part(data: bytes, part: PicturePart, scale: int = 1) -> tuple[NDArray[np.uint8], PicturePart] | None:
    """Decode a part of a JPEG of one scan, whose size is 1/scale (1, 2, 4 or 8) of the header's, rounded up.

    All coded data are read: what is damaged behind the part is noticed too.

    Args:
        part: in pixels of the scaled picture.

    Returns:
        RGB levels, with the bits of the whole picture, and what they are of it: the part and some columns beside it.
        They last until the thread decodes the next. None if libjpeg-turbo says anything about the data, or the picture
        is of another size.

    Raises:
        CpuLibraryError: the library cannot be used here.
    """
    left, right = max(part.left - _MARGIN, 0), min(part.right + _MARGIN, part.width)
    decoded = (ctypes.c_int32 * 6)(*part._replace(left=left, right=right))
    levels = _LEVELS.bytes((part.bottom - part.top) * (right - left + _WIDEST_MCU) * 3)
    if not jpeg_entry()(data, len(data), scale, decoded, levels.ctypes.data, levels.size):
        return None
    made = PicturePart(*decoded)
    rows, columns, _ = made.shape
    return levels[: rows * columns * 3].reshape(made.shape), made
