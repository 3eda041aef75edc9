"""Limits of an image, checked before it is decoded, and the measurements that they were set from.

No accepted body may cost the server's process more than 1 s of CPU or 300 MB. These are the most expensive bodies found
for each class at its limit (fast loader in its own process, AMD EPYC Zen 4, 1 thread, Pillow 13.0, simplejpeg 1.9):

| class | limit | most expensive body | CPU s | MB |
|---|---|---|---|---|
| jpeg | 50 MP | 4:4:4 noise | 0.66 | 161 |
| jpeg_scans | 20 MP, 400 MP x scans | 4:4:4 noise, 10 scans | 0.44 | 181 |
| jpeg_slow | 12 MP | progressive CMYK noise | 0.69 | 158 |
| png | 20 MP | RGBA noise, Paeth filter, interlaced | 0.81 | 150 |
| png_deep | 12 MP | 16-bit RGBA noise, Paeth filter | 0.73 | 96 |
| webp | 12.5 MP, 12 MiB | lossy noise, quality 88 | 0.70 | 213 |
| npy | 20 MP | grey, C order | 0.16 | 86 |

A child of the sandbox may take 2 s and 268 MB beyond its start, whatever a header says. These are the most expensive
bodies there (the same Pillow, best of three on two busy cores of an AMD EPYC, all of the child's memory):

| class | limit | most expensive body | CPU s | MB |
|---|---|---|---|---|
| avif | 12.5 MP, 8 MiB | 8 bits, 4:4:4 noise; 12 bits, 4:4:4 noise | 0.74 | 194 |
| tiff | 20 MP | one strip of JPEG, turned by its tag | 0.62 | 260 |
| gif | 20 MP | noise of 16 levels | 0.30 | 64 |
| bmp, ppm | 20 MP | 1 bit a pixel; grey | 0.18 | 73 |
| jpeg2000 | 8 MP, 8 MiB | 2 MP of noise without loss; 8 MP of one colour | 0.98 | 174 |
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .info import FORMATS, CostClass, Format

MIB = 1 << 20
_MEGAPIXEL = 1_000_000

MAX_PIXELS_BY_COST: Mapping[CostClass, int] = {
    "jpeg": 50 * _MEGAPIXEL,
    "jpeg_scans": 20 * _MEGAPIXEL,
    "jpeg_slow": 12 * _MEGAPIXEL,
    "png": 20 * _MEGAPIXEL,
    "png_deep": 12 * _MEGAPIXEL,
    "webp": 12_500_000,
    "avif": 12_500_000,
    "tiff": 20 * _MEGAPIXEL,
    "gif": 20 * _MEGAPIXEL,
    "bmp": 20 * _MEGAPIXEL,
    "ppm": 20 * _MEGAPIXEL,
    "npy": 20 * _MEGAPIXEL,
    "jpeg2000": 8 * _MEGAPIXEL,
}
MAX_BYTES_BY_COST: Mapping[CostClass, int] = {
    "webp": 12 * MIB,
    "avif": 8 * MIB,
    "jpeg2000": 8 * MIB,
}


@dataclass(frozen=True)
class Limits:
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


DEFAULT_LIMITS = Limits()
