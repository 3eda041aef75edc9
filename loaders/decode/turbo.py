"""Decodes JPEGs with libjpeg-turbo, strictly, whole by simplejpeg: truncated and corrupt bodies are refused."""

from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from ...kernels.images.jpeg import decode_part
from ...kernels.images.resize import PicturePart
from ..errors import undecodable
from ..headers.info import ImageInfo
from .jpeg_junk import SMALLEST, without_junk
from .pillow_decode import decoding_errors


def sound_jpeg(data: bytes, info: ImageInfo) -> bytes:
    """Return the JPEG without junk, or refuse what `decode_jpeg` would, in half its time."""
    return _strictly(data, info, **SMALLEST)[1]


def decode_jpeg(data: bytes, info: ImageInfo, scale: int = 1) -> NDArray[np.uint8]:
    """Decode a JPEG whose header says `turbo` to RGB (height, width, 3), as stored, with the same bits as Pillow.

    Args:
        scale: 1, 2, 4 or 8: how many times smaller it is decoded, rounded up.
    """
    width, height = -(-info.width // scale), -(-info.height // scale)
    smaller = {"min_width": width, "min_height": height} if scale > 1 else {}
    pixels, _ = _strictly(data, info, colorspace="RGB", **smaller)
    if pixels.shape != (height, width, 3):
        raise undecodable(f"JPEG is {pixels.shape[1]}x{pixels.shape[0]} px: its header says otherwise")
    return pixels


def decode_jpeg_part(
    data: bytes, info: ImageInfo, part: PicturePart, scale: int = 1
) -> tuple[NDArray[np.uint8], PicturePart | None]:
    """Decode a part of a JPEG of one scan whose header says `turbo`; bits and refusals are those of `decode_jpeg`.

    Returns:
        RGB, and what it is of the picture; None for the whole picture, which is decoded where libjpeg-turbo warns.
    """
    return decode_part(data, part, scale) or (decode_jpeg(data, info, scale), None)


def _strictly(data: bytes, info: ImageInfo, **options: Any) -> tuple[NDArray[np.uint8], bytes]:
    """Return the pixels and what they were decoded from.

    Any warning of libjpeg that stays without junk is an error: Pillow would answer garbage for a corrupt scan.
    """
    with decoding_errors(f"JPEG of {info.width}x{info.height} px"):
        try:
            return simplejpeg.decode_jpeg(data, strict=True, **options), data
        except ValueError:
            sound = without_junk(data, info)
            return simplejpeg.decode_jpeg(sound, strict=True, **options), sound
