"""How much an image may be before it is decoded: the numbers, and what they were measured from.

No accepted body may cost more than 1 s of CPU or 300 MB on the fast loader. The dearest body found for each
class at its limit, in a process of its own (AMD EPYC Zen 4, 1 thread, Pillow 13.0, simplejpeg 1.9):

| class | limit | dearest body | CPU s | MB |
|---|---|---|---|---|
| jpeg | 50 MP | 4:4:4 noise | 0.66 | 161 |
| jpeg_scans | 20 MP, 400 MP x scans | 4:4:4 noise, 10 scans | 0.44 | 181 |
| jpeg_slow | 12 MP | progressive CMYK noise | 0.69 | 158 |
| png | 20 MP | RGBA noise, Paeth filter, interlaced | 0.81 | 150 |
| png_deep | 12 MP | 16-bit RGBA noise, Paeth filter | 0.73 | 96 |
| webp | 12.5 MP, 12 MiB | lossy noise, quality 88 | 0.70 | 213 |
| avif | 12.5 MP, 8 MiB | 4:4:4 noise with alpha; with film grain | 0.77 | 214 |
| tiff | 20 MP | deflated RGBA, turned by its tag | 0.29 | 155 |
| gif | 20 MP | noise | 0.30 | 107 |
| bmp, ppm | 20 MP | 1 bit a pixel | 0.23 | 86 |
| interpreted | 1 MP, 1 MiB | PPM of 200 levels | 0.51 | 9 |
| npy | 20 MP | grey, C order | 0.16 | 86 |
| jpeg2000 | 8 MP, 8 MiB, 72 M samples x bit planes | blocks that claim all passes of 10 planes | 0.89 | 95 |

An AVIF stream must be of the size that its container says, and all streams of one body may decode to 50 million
samples together (`headers/avif.py`): libavif would otherwise decode 16384x16384 px out of 3 KB (0.70 s, 511 MB).

A JPEG 2000 decoder works through what a header claims (`headers/codestream.py`): without bounds on samples x bit
planes, tiles, code-blocks, precincts and packets, 41 KB take 9.4 s (12 MP, 30 planes, one byte a block) and 83 bytes
3.7 s and 2.2 GB (4 MP, precincts of one sample).
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
    "interpreted": 1 * _MEGAPIXEL,
    "npy": 20 * _MEGAPIXEL,
    "jpeg2000": 8 * _MEGAPIXEL,
}
MAX_BYTES_BY_COST: Mapping[CostClass, int] = {
    "webp": 12 * MIB,
    "avif": 8 * MIB,
    "interpreted": 1 * MIB,
    "jpeg2000": 8 * MIB,
}


@dataclass(frozen=True)
class Limits:
    """What the guard lets through.

    Args:
        max_bytes: of one encoded body.
        max_pixels: of any image, on top of `max_pixels_by_cost`.
        max_side: longest side, px.
        max_aspect: longest over shortest side.
        max_scan_pixels: pixels x scans of a JPEG whose scans each pass over the whole picture.
        max_pixels_by_cost: pixels per cost class.
        max_bytes_by_cost: bytes per cost class, where that is less than `max_bytes`.
        formats: what is accepted; the rest is "unsupported_format".
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
