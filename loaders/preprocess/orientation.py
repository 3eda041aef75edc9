"""Applies the eight EXIF orientations to levels, and finds the crop of an upright picture in the stored one."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...kernels.images.resize import PicturePart, resize_refusal
from .crop import TURNS, Crop, cut
from .resize import part_of_crop, resize_crop
from .spec import Geometry, PreprocessSpec, geometry


def upright_levels(levels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Turn a stored picture (H, W, channels) upright; returns a view."""
    turn = TURNS[orientation]
    levels = levels[:: -1 if turn.flip_y else 1, :: -1 if turn.flip_x else 1]
    return levels.transpose(1, 0, 2) if turn.transpose else levels


def stored_geometry(upright: Geometry, orientation: int) -> Geometry:
    """Return the crop of an upright picture in the coordinates of the stored one, resized alike."""
    turn = TURNS[orientation]
    width, height, left, top = upright.resize_width, upright.resize_height, upright.left, upright.top
    if turn.transpose:
        width, height, left, top = height, width, top, left
    if turn.flip_x:
        left = width - upright.size - left
    if turn.flip_y:
        top = height - upright.size - top
    # Levels are rounded between the passes, so the stored axis that becomes the first upright one is resized first.
    return Geometry(width, height, left, top, upright.size, upright.columns_first != turn.transpose)


def stored_part(width: int, height: int, orientation: int, spec: PreprocessSpec, scale: int = 1) -> PicturePart:
    """Return the part that `upright_crop` reads of a stored picture of width x height px, decoded at 1/scale of it."""
    target = _stored_target(width, height, orientation, spec)
    return part_of_crop((width, height), target, spec.interpolation, scale)


def upright_crop(
    pixels: NDArray[np.uint8],
    orientation: int,
    spec: PreprocessSpec,
    part: PicturePart | None = None,
    size: tuple[int, int] | None = None,
) -> NDArray[np.uint8]:
    """Resize, crop and turn upright a stored picture, RGB (height, width, 3).

    The crop is turned, not the picture: turning 12 megapixels costs more than decoding them. Pillow resizes where the
    CPU kernels are not built: four times as long, to the same bits.

    Args:
        part: what the pixels are of the picture, `stored_part` at least; None: the whole picture.
        size: (width, height) of the stored picture, px, where it was decoded at less. Pillow has the whole size.

    Returns:
        uint8 (size, size, 4), any strides: RGB and a byte that means nothing; where Pillow resizes, (size, size, 3).
    """
    part = part or PicturePart.whole(pixels.shape[1], pixels.shape[0])
    width, height = size or part[:2]
    if resize_refusal() is not None:
        upright = (height, width) if orientation >= 5 else (width, height)
        return np.asarray(cut(Image.fromarray(pixels), pillow_crop(spec, *upright, orientation)))
    target = _stored_target(width, height, orientation, spec)
    return upright_levels(resize_crop(pixels, target, spec.interpolation, part, (width, height)), orientation)


def _stored_target(width: int, height: int, orientation: int, spec: PreprocessSpec) -> Geometry:
    upright = (height, width) if orientation >= 5 else (width, height)
    return stored_geometry(geometry(spec, *upright), orientation)


def pillow_crop(spec: PreprocessSpec, width: int, height: int, orientation: int) -> Crop:
    """Plan the model's crop as Pillow cuts it, for a stored picture that is width x height px once upright."""
    crop = geometry(spec, width, height)
    columns_first = crop.columns_first
    if columns_first:  # Pillow always resizes rows first: so cut the transposed picture, and transpose the crop.
        crop, turn = stored_geometry(crop, 5), TURNS[orientation]
        exchanged = turn._replace(transpose=not turn.transpose)
        orientation = next(number for number, other in TURNS.items() if other == exchanged)
    place = (crop.resize_width, crop.resize_height, crop.left, crop.top, crop.size)
    return Crop(orientation, *place, spec.interpolation == "bilinear", columns_first)
