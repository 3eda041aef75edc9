"""Fuzzes the image headers: refused by InputError alone, and never larger for a decoder than for the guard."""

import contextlib
import io
import random
import warnings
from functools import cache
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image

from milkweed.loaders import InputError, validate
from milkweed.loaders.headers.info import ImageInfo

from .finding import Finding, attempt, one_of


@cache
def seeds() -> tuple[bytes, ...]:
    """Small pictures of every format, and of the kinds of JPEG, PNG and WebP."""
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 40, 3)).astype(np.uint8))
    turned = Image.Exif()
    turned[0x112] = 6
    kinds: list[tuple[str, str, dict[str, Any]]] = [
        *(("JPEG", mode, {}) for mode in ("RGB", "CMYK", "L")),
        *(("JPEG", "RGB", {name: value}) for name, value in (("exif", turned), ("progressive", True))),
        *(("PNG", mode, {}) for mode in ("RGB", "P", "1", "RGBA")),
        *(("WEBP", "RGB", {name: value}) for name, value in (("exif", turned), ("lossless", True))),
        ("PNG", "RGB", {"exif": turned}),
        ("WEBP", "RGB", {"save_all": True, "append_images": [picture.rotate(90)]}),
        *((format, "RGB", {}) for format in ("BMP", "TIFF", "PPM", "GIF")),
    ]
    found = []
    for format, mode, options in kinds:
        out = io.BytesIO()
        picture.convert(mode).save(out, format, **options)
        found.append(out.getvalue())
    for array in (np.zeros((4, 4, 3), np.uint8), np.zeros((2, 3, 8, 8), np.float32)):
        out = io.BytesIO()
        np.save(out, array)
        found.append(out.getvalue())
    return tuple(found)


def headers(draw: random.Random) -> None:
    data = one_of(draw, seeds())
    found: list[ImageInfo] = []
    if attempt(lambda: found.append(validate(data)), data, InputError) and found[0].format in ("JPEG", "PNG", "WEBP"):
        guard = found[0]
        for decoder, (width, height) in decoders_sizes(data, guard.format).items():
            if width * height > guard.width * guard.height:
                sizes = f"{width}x{height}, the guard {guard.width}x{guard.height}"
                raise Finding(f"{guard.format}: {decoder} sees {sizes}", data)


def decoders_sizes(data: bytes, format: str) -> dict[str, tuple[int, int]]:
    """The sizes that the decoders see; those that refuse it are left out."""
    sizes = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.suppress(Exception):
            sizes["Pillow"] = Image.open(io.BytesIO(data), formats=(format,)).size
        if format == "JPEG":
            with contextlib.suppress(ValueError):
                height, width, *_ = simplejpeg.decode_jpeg_header(data)
                sizes["libjpeg"] = width, height
    return sizes


TARGETS = {"headers": headers}
