"""Pictures that the demo model knows, drawn here: no photograph has to be there."""

import io
from collections.abc import Callable, Sequence
from typing import Any

from PIL import Image, ImageDraw, ImageOps

SIZE = 640, 480
DARK, RED, WHITE = (40, 44, 56), (200, 60, 40), (238, 240, 240)
_FINER = 2

_Shape = tuple[str, Sequence[float], tuple[int, int, int]]


def _png(top: Any, bottom: Any, *shapes: _Shape) -> bytes:
    """Draw a sky and shapes on it: what `ImageDraw` calls it, coordinates in px of the finished picture, colour."""
    size = [_FINER * side for side in SIZE]
    image = ImageOps.colorize(Image.linear_gradient("L").resize(size), top, bottom)
    draw = ImageDraw.Draw(image)
    for kind, coordinates, colour in shapes:
        getattr(draw, kind)([_FINER * place for place in coordinates], fill=colour)
    out = io.BytesIO()
    image.resize(SIZE, Image.Resampling.LANCZOS).save(out, "PNG")
    return out.getvalue()


def ship() -> bytes:
    """A steamer at sea."""
    return _png(
        (150, 190, 225),
        (215, 228, 235),
        ("rectangle", (0, 300, 640, 480), (38, 84, 124)),
        *[("rectangle", (0, y, 640, y + 2), (60, 108, 150)) for y in range(310, 480, 18)],
        ("polygon", (90, 270, 570, 255, 520, 350, 140, 350), DARK),
        ("polygon", (140, 350, 520, 350, 515, 362, 146, 362), RED),
        ("rectangle", (200, 200, 430, 262), WHITE),
        ("rectangle", (230, 150, 390, 200), (228, 228, 226)),
        ("rectangle", (300, 90, 345, 150), RED),
        ("rectangle", (300, 90, 345, 105), DARK),
        *[("ellipse", (x, 222, x + 14, 236), (60, 90, 120)) for x in range(215, 420, 30)],
        ("rectangle", (468, 140, 472, 256), DARK),
    )


def airplane() -> bytes:
    """An airliner from the side."""
    return _png(
        (92, 150, 215),
        (190, 215, 240),
        ("ellipse", (90, 215, 560, 275), WHITE),
        ("polygon", (520, 240, 600, 150, 560, 150, 470, 225), (220, 225, 232)),
        ("polygon", (360, 245, 250, 400, 200, 400, 270, 245), (205, 210, 220)),
        ("polygon", (350, 232, 290, 130, 255, 130, 270, 232), (215, 220, 228)),
        ("polygon", (90, 245, 70, 250, 110, 262), DARK),
        *[("ellipse", (x, 232, x + 10, 242), (70, 90, 120)) for x in range(150, 480, 26)],
    )


DRAWINGS: Sequence[Callable[[], bytes]] = (ship, airplane)
