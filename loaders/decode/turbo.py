"""Decodes JPEGs with simplejpeg, strictly: truncated and corrupt bodies are refused."""

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from ..errors import undecodable
from ..headers.info import ImageInfo
from .pillow_decode import decoding_errors


def check_jpeg(data: bytes, info: ImageInfo) -> None:
    """Refuse what `decode_jpeg` would, in half its time: all coded data is read, but an eighth of the size is made."""
    with decoding_errors(f"JPEG of {info.width}x{info.height} px"):
        simplejpeg.decode_jpeg(
            data, colorspace="GRAY", fastdct=True, fastupsample=True, min_height=1, min_width=1, strict=True
        )


def decode_jpeg(data: bytes, info: ImageInfo) -> NDArray[np.uint8]:
    """Decode a JPEG whose header says `turbo` to RGB (height, width, 3), as stored, with the same bits as Pillow.

    Any warning of libjpeg is an error here: Pillow would answer garbage for a corrupt scan.
    """
    with decoding_errors(f"JPEG of {info.width}x{info.height} px"):
        pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(data, colorspace="RGB", strict=True)
        if pixels.shape != (info.height, info.width, 3):
            raise undecodable(f"JPEG is {pixels.shape[1]}x{pixels.shape[0]} px: its header says otherwise")
        return pixels
