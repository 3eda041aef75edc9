"""The eight EXIF orientations: turning a stored picture upright, and finding an upright crop in it."""

from torch import Tensor

from ..sandbox.child import TURNS, Crop
from .spec import Geometry, PreprocessSpec, geometry


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


def pillow_crop(spec: PreprocessSpec, width: int, height: int, orientation: int) -> Crop:
    """Plan the model's crop as Pillow cuts it, for a stored picture that is width x height px once upright."""
    crop = geometry(spec, width, height)
    columns_first = crop.columns_first
    if columns_first:  # both passes do the same: work on the transposed picture, and transpose the crop
        crop, turn = stored_geometry(crop, 5), TURNS[orientation]
        exchanged = turn._replace(transpose=not turn.transpose)
        orientation = next(number for number, other in TURNS.items() if other == exchanged)
    place = (crop.resize_width, crop.resize_height, crop.left, crop.top, crop.size)
    return Crop(orientation, *place, spec.interpolation == "bilinear", columns_first)
