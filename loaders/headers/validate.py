"""Header validation: tells what an encoded image is and whether it may be decoded, from its header alone."""

from collections.abc import Callable, Mapping

from ..errors import InputError, undecodable
from .info import SANDBOXED, Format, ImageInfo
from .jpeg import read_jpeg
from .limits import DEFAULT_LIMITS, ImageLimits
from .npy import read_npy
from .png import read_png
from .sniff import sniff
from .webp import read_webp

_READERS: Mapping[Format, Callable[[bytes], ImageInfo]] = {
    "JPEG": read_jpeg,
    "PNG": read_png,
    "WEBP": read_webp,
    "NPY": read_npy,
}


def validate(data: bytes, limits: ImageLimits = DEFAULT_LIMITS) -> ImageInfo:
    """Read the header of an encoded image and hold it against the limits; decodes nothing.

    If the image is `sandboxed`, only its first bytes are read. Its size is not known yet, and whoever decodes it holds
    the size against the limits with `check_size`.

    Raises:
        InputError: "empty", "too_large" and "too_many_pixels" name the limit; "unsupported_format" for other
            content; "undecodable" where the magic is right and the header broken.
    """
    if not data:
        raise InputError("empty", "the image body has 0 bytes")
    if len(data) > limits.max_bytes:
        raise InputError("too_large", f"image body has {len(data)} bytes: limit {limits.max_bytes} bytes")
    format = sniff(data, limits.formats)
    if format in SANDBOXED:
        info = ImageInfo(format, 0, 0, "", cost=SANDBOXED[format])
    else:
        info = _read(data, format)
        check_size(info, limits)
    most = limits.max_bytes_by_cost.get(info.cost, limits.max_bytes)
    if len(data) > most:
        raise InputError("too_large", f"image body has {len(data)} bytes: limit {most} bytes for {_describe(info)}")
    return info


def check_size(info: ImageInfo, limits: ImageLimits = DEFAULT_LIMITS) -> None:
    """Hold the size in px against the limits; raises InputError, mostly "too_many_pixels"."""
    if info.width < 1 or info.height < 1:
        raise undecodable(f"{info.format} is {info.width}x{info.height} px: expected at least 1x1")
    longest, shortest = max(info.width, info.height), min(info.width, info.height)
    most = min(limits.max_pixels, limits.max_pixels_by_cost[info.cost])
    if longest > limits.max_side:
        _refuse(info, f"side limit {limits.max_side} px")
    if longest > limits.max_aspect * shortest:
        _refuse(info, f"aspect ratio limit {limits.max_aspect:g}:1")
    if info.pixels > most:
        _refuse(info, f"limit {most / 1e6:g} megapixels for {_describe(info)}")
    if info.scans > 1 and info.pixels * info.scans > limits.max_scan_pixels:
        _refuse(info, f"limit {limits.max_scan_pixels / 1e6:g} megapixels times scans, {info.scans} scans")


def _read(data: bytes, format: Format) -> ImageInfo:
    try:
        return _READERS[format](data)
    except IndexError:
        raise undecodable(f"{format} header is cut off") from None


def _describe(info: ImageInfo) -> str:
    """The cost class in words."""
    kinds = {
        "jpeg_scans": "progressive JPEG",
        "jpeg_slow": "CMYK or lossless JPEG",
        "png_deep": "16-bit PNG",
    }
    return kinds.get(info.cost, info.format)


def _refuse(info: ImageInfo, limit: str) -> None:
    raise InputError("too_many_pixels", f"{info.format} is {info.width}x{info.height} px: {limit}")
