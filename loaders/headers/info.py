"""What the header of an encoded image says, as plain data, and which file names are images."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Format = Literal["JPEG", "PNG", "WEBP", "BMP", "TIFF", "PPM", "GIF", "AVIF", "NPY", "JPEG2000"]
FORMATS: tuple[Format, ...] = ("JPEG", "PNG", "WEBP", "NPY", "BMP", "TIFF", "PPM", "GIF", "AVIF")
OPT_IN_FORMATS: tuple[Format, ...] = ("JPEG2000",)
"""Accepted only where `ImageLimits.formats` names them."""
SANDBOXED: Mapping[Format, "CostClass"] = {
    "BMP": "bmp",
    "TIFF": "tiff",
    "PPM": "ppm",
    "GIF": "gif",
    "AVIF": "avif",
    "JPEG2000": "jpeg2000",
}
"""Only the children of a `Sandbox` read the headers of these formats; each has the limits of its cost class."""
IMAGE_SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".avif", ".gif", ".bmp", ".dib", ".tif", ".tiff")
) | {".ppm", ".pgm", ".pbm", ".pnm"}
"""Endings of image files; of other files in a folder the first bytes decide."""

# The cost of a pixel differs by an order of magnitude between these classes, so each has its own limits:
# jpeg = one scan, jpeg_scans = progressive or several scans, jpeg_slow = lossless or four components,
# png_deep = 16 bits a sample.
CostClass = Literal[
    "jpeg",
    "jpeg_scans",
    "jpeg_slow",
    "png",
    "png_deep",
    "webp",
    "avif",
    "tiff",
    "gif",
    "bmp",
    "ppm",
    "npy",
    "jpeg2000",
]


@dataclass(frozen=True)
class ArrayHeader:
    """The header of an NPY array.

    Args:
        dtype: as numpy's descr has it: `|u1`, `<f2`, `>f4`, ...
        start: where its values begin in the body; they go on to its end.
    """

    dtype: str
    shape: tuple[int, ...]
    fortran_order: bool
    start: int

    @property
    def is_input(self) -> bool:
        """Whether it is a model's input, prepared already, and not a picture."""
        return self.dtype[-2] == "f"


@dataclass(frozen=True)
class ImageInfo:
    """The header of one image.

    Args:
        format: one of `FORMATS` or `OPT_IN_FORMATS`, from the magic bytes, never from a file name or a Content-Type.
        width, height: as stored, px. TIFF: upright, since Pillow turns TIFF itself. They are 0 as long as
            the size is not known, which is so if the image is `sandboxed`.
        mode: Pillow's name of the pixel layout, as far as the header tells.
        orientation: EXIF orientation, 1..8; 1 is upright.
        progressive: the JPEG needs several passes over its coefficients.
        frames: number of pictures where the header says so (PNG, WebP, AVIF), else 1. The first one is used.
        cost: the class its pixel limit comes from.
        scans: number of JPEG scans, counted only where it matters (`progressive`).
        turbo: simplejpeg decodes this JPEG exactly as Pillow does.
        array: the header of an NPY.
        cropped: the bytes that come with this header are already the model's crop, RGB levels (size, size, 3).
    """

    format: Format
    width: int
    height: int
    mode: str
    orientation: int = 1
    progressive: bool = False
    frames: int = 1
    cost: CostClass = "jpeg"
    scans: int = 1
    turbo: bool = False
    array: ArrayHeader | None = None
    cropped: bool = False

    @property
    def sandboxed(self) -> bool:
        """Whether only a `Sandbox` may decode the bytes that come with this header."""
        return self.format in SANDBOXED and not self.cropped

    @property
    def pixels(self) -> int:
        """Number of pixels that a full decode makes; 0 if it is not known yet, or if they are decoded already."""
        return 0 if self.cropped else self.width * self.height

    def upright_size(self, apply_orientation: bool) -> tuple[int, int]:
        """Width and height as seen by a person (apply_orientation) or as stored."""
        if apply_orientation and self.orientation >= 5:
            return self.height, self.width
        return self.width, self.height
