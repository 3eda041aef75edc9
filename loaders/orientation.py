"""The eight EXIF orientations: turning a stored picture upright, and finding an upright crop in it."""

from dataclasses import dataclass

from PIL import Image
from torch import Tensor

from .spec import Geometry


@dataclass(frozen=True)
class Turn:
    """Upright = stored, flipped left-right and top-bottom as told, then transposed as told."""

    flip_x: bool
    flip_y: bool
    transpose: bool


# EXIF 2.32, tag 0x0112: where the stored row 0 and column 0 are seen
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
_PILLOW = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def transposed(orientation: int) -> int:
    """The orientation that, beside what this one does, exchanges rows and columns of the upright picture."""
    turn = TURNS[orientation]
    return next(
        number
        for number, other in TURNS.items()
        if (other.flip_x, other.flip_y, other.transpose) == (turn.flip_x, turn.flip_y, not turn.transpose)
    )


def upright_image(image: Image.Image, orientation: int) -> Image.Image:
    """A stored Pillow image as a person sees it."""
    return image if orientation == 1 else image.transpose(_PILLOW[orientation])


def upright_levels(levels: Tensor, orientation: int) -> Tensor:
    """The same for a square (S, S, channels) tensor: a view or a flipped copy."""
    turn = TURNS[orientation]
    dims = [dim for dim, flip in ((0, turn.flip_y), (1, turn.flip_x)) if flip]
    levels = levels.flip(dims) if dims else levels
    return levels.transpose(0, 1) if turn.transpose else levels


def stored_geometry(upright: Geometry, orientation: int) -> Geometry:
    """The crop of an upright picture, in the coordinates of the stored one resized alike."""
    turn = TURNS[orientation]
    width, height, left, top = upright.resize_width, upright.resize_height, upright.left, upright.top
    if turn.transpose:
        width, height, left, top = height, width, top, left
    if turn.flip_x:
        left = width - upright.size - left
    if turn.flip_y:
        top = height - upright.size - top
    # levels are rounded between the passes, so the axis that ends up first must go first
    return Geometry(width, height, left, top, upright.size, upright.columns_first != turn.transpose)


def stored_box(box: tuple[int, int, int, int], width: int, height: int, orientation: int) -> tuple[int, int, int, int]:
    """The box (left, top, right, bottom) of an upright picture, in the stored one of width x height px."""
    turn = TURNS[orientation]
    left, top, right, bottom = box
    if turn.transpose:
        left, top, right, bottom = top, left, bottom, right
    if turn.flip_x:
        left, right = width - right, width - left
    if turn.flip_y:
        top, bottom = height - bottom, height - top
    return left, top, right, bottom
