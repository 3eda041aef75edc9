"""Limits of an image, which are checked before it is decoded, and the dearest body that was found at each of them.

No accepted body may cost the server's process more than 1 s of CPU or 300 MB; a child of the sandbox may take 2 s and
268 MB beyond its start, whatever a header says. docs/images.md#limits says what the dearest bodies cost (fast loader in
its own process, AMD EPYC Zen 4, 1 thread, Pillow 13.0, simplejpeg 1.9; children: best of three on two busy cores).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .info import FORMATS, CostClass, Format

MIB = 1 << 20
_MEGAPIXEL = 1_000_000

MAX_PIXELS_BY_COST: Mapping[CostClass, int] = {
    "jpeg": 50 * _MEGAPIXEL,  # 4:4:4 noise
    "jpeg_scans": 20 * _MEGAPIXEL,  # 4:4:4 noise, 10 scans
    "jpeg_slow": 12 * _MEGAPIXEL,  # progressive CMYK noise
    "png": 20 * _MEGAPIXEL,  # RGBA noise, Paeth filter, interlaced
    "png_deep": 12 * _MEGAPIXEL,  # 16-bit RGBA noise, Paeth filter
    "webp": 12_500_000,  # lossy noise, quality 88
    "npy": 20 * _MEGAPIXEL,  # grey, C order
    # In a child of the sandbox:
    "avif": 12_500_000,  # 8 bits, 4:4:4 noise; 12 bits, 4:4:4 noise
    "tiff": 20 * _MEGAPIXEL,  # one strip of JPEG, turned by its tag
    "gif": 20 * _MEGAPIXEL,  # noise of 16 levels
    "bmp": 20 * _MEGAPIXEL,  # 1 bit a pixel
    "ppm": 20 * _MEGAPIXEL,  # grey
    "jpeg2000": 8 * _MEGAPIXEL,  # 2 MP of noise without loss; 8 MP of one colour
}
MAX_BYTES_BY_COST: Mapping[CostClass, int] = {"webp": 12 * MIB, "avif": 8 * MIB, "jpeg2000": 8 * MIB}


@dataclass(frozen=True)
class ImageLimits:
    """What header validation lets through.

    Args:
        max_bytes: size of one encoded body.
        max_pixels: pixels of any image, in addition to `max_pixels_by_cost`.
        max_side: longest side, px.
        max_aspect: longest side over shortest side.
        max_scan_pixels: pixels x scans of a JPEG whose scans each pass over the whole picture.
        max_pixels_by_cost: pixels per cost class.
        max_bytes_by_cost: bytes per cost class, for those that may have less than `max_bytes`.
        formats: accepted formats; others are "unsupported_format".
    """

    max_bytes: int = 20 * MIB
    max_pixels: int = 50 * _MEGAPIXEL
    max_side: int = 16384
    max_aspect: float = 100.0
    max_scan_pixels: int = 400 * _MEGAPIXEL
    max_pixels_by_cost: Mapping[CostClass, int] = field(default_factory=lambda: MAX_PIXELS_BY_COST)
    max_bytes_by_cost: Mapping[CostClass, int] = field(default_factory=lambda: MAX_BYTES_BY_COST)
    formats: tuple[Format, ...] = FORMATS


DEFAULT_LIMITS = ImageLimits()
