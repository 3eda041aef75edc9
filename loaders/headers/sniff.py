"""Recognises the format of a body by its magic bytes."""

import logging
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from ..errors import InputError, unsupported
from .info import FORMATS, IMAGE_SUFFIXES, Format
from .npy import MAGIC as NPY_MAGIC

logger = logging.getLogger("milkweed.loaders")

_BMP_HEADER_BYTES = frozenset((12, 16, 40, 52, 56, 64, 108, 124))
_TIFF_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_JPEG2000_MAGIC = (b"\0\0\0\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51")  # boxes, codestream
_AVIF_BRANDS = frozenset((b"avif", b"avis"))
# People post these, so the message names them; everything else is "not an accepted image".
_KNOWN_OTHERS = (
    (b"\xff\x0a", "JPEG XL"),
    (b"\0\0\0\x0cJXL ", "JPEG XL"),
    (b"\0\0\1\0", "ICO"),
    (b"qoif", "QOI"),
    (b"8BPS", "Photoshop"),
    (b"%PDF", "PDF"),
    (b"<svg", "SVG"),
    (b"<!DOCTYPE html", "HTML"),
    (b"<html", "HTML"),
    (b"version https://git-lfs", "a Git LFS pointer (git lfs pull fetches the image)"),
    (b"/annex/objects/", "a git-annex pointer (git annex get fetches the image)"),
)


def sniff(data: bytes, accepted: tuple[Format, ...] = FORMATS) -> Format:
    """Return the format of `data`; raises InputError "unsupported_format" if it is not accepted."""
    head = bytes(data[:64])
    format = _raster(head) or _boxed(head)
    if format in accepted:
        return format
    name = "JPEG 2000" if format == "JPEG2000" else format or _foreign_name(head)
    said = f"{name} is not accepted" if name else "the body is not an accepted image"
    option = f"; a server takes {name} where --formats names {format.lower()}" if format else ""
    raise unsupported(f"{said}: expected one of {', '.join(accepted)}{option}")


def images_among(files: Iterable[Path]) -> list[Path]:
    """Sort out the images: by their names' suffixes, else by their first bytes; how many others there are is logged."""
    images, others = [], Counter[str]()
    for path in files:
        try:
            if path.suffix.lower() not in IMAGE_SUFFIXES:
                with open(path, "rb") as file:
                    sniff(file.read(64))
            images.append(path)
        except (OSError, InputError):
            others[path.suffix.lower() or "without a suffix"] += 1
    if others:
        kinds = ", ".join(f"{count} {suffix}" for suffix, count in others.most_common(5))
        logger.warning("%d files are no images of a format that is read, and left out: %s", others.total(), kinds)
    return sorted(images)


def _raster(head: bytes) -> Format | None:
    if head.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if head.startswith(_TIFF_MAGIC):
        return "TIFF"
    if head.startswith(NPY_MAGIC):
        return "NPY"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "GIF"
    # Two letters prove little, so the size of the next header must fit too.
    if head.startswith(b"BM") and int.from_bytes(head[14:18], "little") in _BMP_HEADER_BYTES:
        return "BMP"
    if len(head) > 2 and head[:1] == b"P" and head[1:2] in b"123456" and head[2:3] in b" \t\r\n\v\f#":
        return "PPM"
    return None


def _boxed(head: bytes) -> Format | None:
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "WEBP"
    if head.startswith(_JPEG2000_MAGIC):
        return "JPEG2000"
    if head[4:8] == b"ftyp" and _AVIF_BRANDS & _brands(head):
        return "AVIF"
    return None


def _brands(head: bytes) -> set[bytes]:
    """Return the major and compatible brands of an ISO media file, as far as the first bytes hold them."""
    end = min(int.from_bytes(head[:4], "big"), len(head))
    return {head[8:12]} | {head[i : i + 4] for i in range(16, end - 3, 4)}


def _foreign_name(head: bytes) -> str | None:
    if head[4:8] == b"ftyp" and _brands(head) & {b"heic", b"heix", b"hevc", b"mif1", b"msf1"}:
        return "HEIC"
    return next((name for magic, name in _KNOWN_OTHERS if head.startswith(magic)), None)
