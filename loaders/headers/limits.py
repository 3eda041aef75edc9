"""How much an image may be before it is decoded: the numbers, and what they were measured from.

No accepted body may cost the process that serves more than 1 s of CPU or 300 MB. The dearest body found for each class
at its limit, on the fast loader in a process of its own (AMD EPYC Zen 4, 1 thread, Pillow 13.0, simplejpeg 1.9):

| class | limit | dearest body | CPU s | MB |
|---|---|---|---|---|
| jpeg | 50 MP | 4:4:4 noise | 0.66 | 161 |
| jpeg_scans | 20 MP, 400 MP x scans | 4:4:4 noise, 10 scans | 0.44 | 181 |
| jpeg_slow | 12 MP | progressive CMYK noise | 0.69 | 158 |
| png | 20 MP | RGBA noise, Paeth filter, interlaced | 0.81 | 150 |
| png_deep | 12 MP | 16-bit RGBA noise, Paeth filter | 0.73 | 96 |
| webp | 12.5 MP, 12 MiB | lossy noise, quality 88 | 0.70 | 213 |
| npy | 20 MP | grey, C order | 0.16 | 86 |

and in a child of the sandbox, which may take 2 s and 268 MB beyond its start, whatever a header says (the same Pillow,
best of three on two busy cores of an AMD EPYC, all of the child's memory):

| class | limit | dearest body | CPU s | MB |
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
