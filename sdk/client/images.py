"""Turns what a caller may give as an image into encoded bytes. It imports neither Pillow nor numpy by itself.

Pixels in memory are encoded without loss: as NPY, or as PNG where NPY cannot express them or would be too large.
"""

import io
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeGuard

from .errors import MilkweedError, unreadable
from .shrink import ORIENTATION, shrunk


class Readable(Protocol):
    """A binary file that is open."""

    def read(self) -> bytes:
        """Read all that is left of the file."""


class Picture(Protocol):
    """An image of Pillow."""

    @property
    def mode(self) -> str:
        """The layout of its pixels."""

    def getexif(self) -> Any:
        """Return the EXIF data, which hold its orientation."""

    def tobytes(self) -> bytes:
        """Return its pixels, row by row."""


class Array(Protocol):
    """An array of numpy."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one image: (H, W), (H, W, 1), (H, W, 3) of uint8, or (3, S, S) of floats, a model's input."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """The description of its memory."""


Image = bytes | bytearray | memoryview | str | os.PathLike[str] | Readable | Picture | Array
"""One image: encoded bytes, the path of a file, an open file, or pixels as Pillow or numpy have them."""

EncodedImage = bytes | MilkweedError
"""The encoded bytes of an image, or why it has none."""

_NPY_BYTES = 16 << 20
"""Larger pixel data is encoded as PNG: servers take images of 20 MiB."""

_AS_THEY_ARE = frozenset(("1", "L", "LA", "P", "RGB", "RGBA", "I;16"))
_CONVERTED = frozenset(("CMYK", "YCbCr", "PA", "RGBX", "LAB", "HSV", "La", "RGBa"))


def is_one(images: object) -> TypeGuard[Image]:
    """Tell whether this is one image; otherwise it is several."""
    kinds = (bytes, bytearray, memoryview, str, os.PathLike)
    return isinstance(images, kinds) or any(hasattr(images, name) for name in ("read", "__array_interface__"))


def encode(image: Image, side: int | None = None) -> bytes:
    """Return the encoded bytes of one image.

    A Pillow image is classified as its file would be: EXIF's orientation is applied, alpha is not.

    Args:
        side: the shorter side in pixels to which a larger photograph is scaled; None leaves all as they are.

    Raises:
        ImageRefused: `unreadable`, the file cannot be read.
        ValueError: no server takes such pixels, or the array holds several images.
        TypeError: the object is no image.
    """
    data = _bytes_of(image)
    return data if side is None else shrunk(data, side)


def _bytes_of(image: Image) -> bytes:
    try:
        if isinstance(image, bytes | bytearray | memoryview):
            return bytes(image)
        if isinstance(image, str | os.PathLike):
            return Path(image).read_bytes()
        if hasattr(image, "getexif"):
            return _picture(image)
        if hasattr(image, "__array_interface__"):
            return _array(image)
        if hasattr(image, "read"):
            return _contents(image)
    except OSError as error:
        raise unreadable(error.strerror or str(error)) from error
    raise TypeError(
        f"{type(image).__name__} is no image: give bytes, a path, an open binary file, a Pillow image or a numpy array"
    )


def encoded(images: Iterable[Image], side: int | None = None) -> Iterator[EncodedImage]:
    """Encode each image, as `encode` does; one that cannot be read gives its error."""
    for image in images:
        try:
            yield encode(image, side)
        except MilkweedError as error:
            yield error


def in_batches(images: Iterable[EncodedImage], most: int, most_bytes: int) -> Iterator[list[EncodedImage]]:
    """Group images into lists of at most `most` images, and of little more than `most_bytes` bytes."""
    batch: list[EncodedImage] = []
    held = 0
    for image in images:
        batch.append(image)
        held += len(image) if isinstance(image, bytes) else 0
        if len(batch) >= most or held >= most_bytes:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def _contents(file: Any) -> bytes:
    data = file.read()
    if not isinstance(data, bytes):
        raise TypeError(f"a file that reads {type(data).__name__} is no image: open it in binary mode")
    return data


def _picture(image: Any) -> bytes:
    image.load()
    if image.mode in _CONVERTED:
        image = image.convert("RGB")
    elif image.mode not in _AS_THEY_ARE:
        raise ValueError(f"a Pillow image of mode {image.mode} has no 8-bit levels: convert it to RGB")
    orientation = image.getexif().get(ORIENTATION, 1)
    width, height = image.size
    if image.mode == "RGB" and orientation == 1 and 3 * width * height <= _NPY_BYTES:
        text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({height}, {width}, 3), }}"
        # Version 1.0: magic, length, header; numbers begin at a multiple of 64.
        header = text.ljust(-(10 + len(text) + 1) % 64 + len(text)) + "\n"
        return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode() + image.tobytes()
    from PIL.Image import Exif

    exif, out = Exif(), io.BytesIO()
    exif[ORIENTATION] = orientation
    image.save(out, "PNG", compress_level=1, exif=exif, icc_profile=None)
    return out.getvalue()


def _array(array: Any) -> bytes:
    import numpy as np

    if array.ndim > 3:
        raise ValueError(f"an array of shape {array.shape} is several images: give them as a list, list(array)")
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()
