"""Turns a stored picture upright and cuts the model's crop out of it with Pillow, without a copy of the whole picture.

It imports only Pillow and the standard library, because the sandbox's child processes load this file too
(`sandbox/child.py`): the parent and its children make crops with the same code, so with the same bits.
"""

from collections.abc import Iterator
from typing import NamedTuple

from PIL import Image

_BAND_PIXELS = 1 << 20


class Crop(NamedTuple):
    """Says how the model's crop is made from a stored picture.

    Args:
        orientation: EXIF orientation, 1 to 8, by which the picture is turned upright first.
        width, height: size that the upright picture is resized to, px; horizontally first, then vertically.
        left, top, size: square that is then cut out, px; it is black where it lies outside the picture.
        bilinear: the resizing filter is bilinear; otherwise it is bicubic.
        transposed: the crop is transposed at the end.
    """

    orientation: int
    width: int = 0
    height: int = 0
    left: int = 0
    top: int = 0
    size: int = 0
    bilinear: bool = False
    transposed: bool = False


class Turn(NamedTuple):
    """Says how a stored picture is turned upright: it is flipped left-right and top-bottom, then transposed."""

    flip_x: bool
    flip_y: bool
    transpose: bool


# EXIF 2.32, tag 0x0112, says on which sides of the scene the stored row 0 and column 0 lie.
TURNS = {
    1: Turn(False, False, False),
    2: Turn(True, False, False),
    3: Turn(True, True, False),
    4: Turn(False, True, False),
    5: Turn(False, False, True),
    6: Turn(False, True, True),
    7: Turn(True, True, True),
    8: Turn(True, False, True),
}
_PILLOW_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert as Pillow's convert("RGB") does, without alpha, but scale 16-bit grey to 8 bits instead of saturating."""
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I"):
        image = Image.frombytes("L", image.size, image.tobytes("raw", "I;16B")[::2])
    # Alpha is dropped, so a transparent colour of a palette would only cause a warning.
    image.info.pop("transparency", None)
    return image.convert("RGB")


def stored_box(box: tuple[int, int, int, int], width: int, height: int, orientation: int) -> tuple[int, int, int, int]:
    """Map a box (left, top, right, bottom) of the upright picture into the stored picture of width x height px."""
    turn = TURNS[orientation]
    left, top, right, bottom = box
    if turn.transpose:
        left, top, right, bottom = top, left, bottom, right
    if turn.flip_x:
        left, right = width - right, width - left
    if turn.flip_y:
        top, bottom = height - bottom, height - top
    return left, top, right, bottom


def upright_bands(image: Image.Image, orientation: int, widest: int = 1) -> Iterator[tuple[int, Image.Image]]:
    """Yield the upright picture in RGB as bands of whole rows, each with the number of its first row.

    No copy of the whole picture is made.

    Args:
        widest: width that the bands will be resized to, px, if that is more than they have.
    """
    width, height = image.size[::-1] if TURNS[orientation].transpose else image.size
    rows = max(1, _BAND_PIXELS // max(width, widest))
    for top in range(0, height, rows):
        box = (0, top, width, min(top + rows, height))
        band = image.crop(stored_box(box, *image.size, orientation))
        yield top, to_rgb(band if orientation == 1 else band.transpose(_PILLOW_TURNS[orientation]))


def cut(image: Image.Image, crop: Crop) -> Image.Image:
    """Make the crop in RGB, size x size px, with the same bits as if Pillow resized the whole picture and cut it.

    Pillow resizes in two passes with 8-bit levels between them. The first treats every row alone and the second every
    column alone, so the first pass runs on bands of rows, and the second only gets the columns of the crop.
    """
    size, resampling = crop.size, Image.Resampling.BILINEAR if crop.bilinear else Image.Resampling.BICUBIC
    left, right = max(crop.left, 0), min(crop.left + size, crop.width)
    upright_height = image.width if TURNS[crop.orientation].transpose else image.height
    tall = Image.new("RGB", (right - left, upright_height))
    for top, band in upright_bands(image, crop.orientation, crop.width):
        tall.paste(band.resize((crop.width, band.height), resampling).crop((left, 0, right, band.height)), (0, top))
    top, bottom = max(crop.top, 0), min(crop.top + size, crop.height)
    made = Image.new("RGB", (size, size))
    columns = max(1, _BAND_PIXELS // crop.height)
    for first in range(0, tall.width, columns):
        band = tall.crop((first, 0, min(first + columns, tall.width), tall.height))
        band = band.resize((band.width, crop.height), resampling).crop((0, top, band.width, bottom))
        made.paste(band, (first + max(-crop.left, 0), max(-crop.top, 0)))
    return made.transpose(Image.Transpose.TRANSPOSE) if crop.transposed else made
