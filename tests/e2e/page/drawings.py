"""Pictures that the demo model knows, drawn here: no photograph has to be there."""

import io
from collections.abc import Callable, Sequence

from PIL import Image, ImageDraw

WIDTH, HEIGHT, FINER = 640, 480, 2

Colour = tuple[int, int, int]


class Sheet:
    """A sky, and shapes on it; coordinates in px of the finished picture."""

    def __init__(self, top: Colour, bottom: Colour) -> None:
        self._image = Image.new("RGB", (WIDTH * FINER, HEIGHT * FINER))
        self._draw = ImageDraw.Draw(self._image)
        for y in range(HEIGHT * FINER):
            share = y / (HEIGHT * FINER)
            colour = tuple(round(a + (b - a) * share) for a, b in zip(top, bottom, strict=True))
            self._draw.line([(0, y), (WIDTH * FINER, y)], fill=colour)

    def box(self, x0: float, y0: float, x1: float, y1: float, colour: Colour) -> None:
        self._draw.rectangle([each * FINER for each in (x0, y0, x1, y1)], fill=colour)

    def round(self, x0: float, y0: float, x1: float, y1: float, colour: Colour) -> None:
        self._draw.ellipse([each * FINER for each in (x0, y0, x1, y1)], fill=colour)

    def shape(self, *points: tuple[float, float], colour: Colour) -> None:
        self._draw.polygon([(x * FINER, y * FINER) for x, y in points], fill=colour)

    def line(self, *points: tuple[float, float], colour: Colour, width: int) -> None:
        self._draw.line([(x * FINER, y * FINER) for x, y in points], fill=colour, width=width * FINER)

    def png(self) -> bytes:
        out = io.BytesIO()
        self._image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS).save(out, "PNG")
        return out.getvalue()


def ship() -> bytes:
    """A steamer at sea."""
    sheet = Sheet((150, 190, 225), (215, 228, 235))
    sheet.box(0, 300, WIDTH, HEIGHT, (38, 84, 124))
    for y in range(310, HEIGHT, 18):
        sheet.line((0, y), (WIDTH, y + 4), colour=(60, 108, 150), width=3)
    sheet.shape((90, 270), (570, 255), (520, 350), (140, 350), colour=(40, 44, 56))
    sheet.shape((140, 350), (520, 350), (515, 362), (146, 362), colour=(160, 40, 40))
    sheet.box(200, 200, 430, 262, (240, 240, 238))
    sheet.box(230, 150, 390, 200, (228, 228, 226))
    sheet.box(300, 90, 345, 150, (190, 60, 40))
    sheet.box(300, 90, 345, 105, (30, 30, 30))
    for x in range(215, 420, 30):
        sheet.round(x, 222, x + 14, 236, (60, 90, 120))
    sheet.line((470, 256), (470, 140), colour=(60, 60, 60), width=4)
    return sheet.png()


def airplane() -> bytes:
    """An airliner from the side."""
    sheet = Sheet((92, 150, 215), (190, 215, 240))
    sheet.round(90, 215, 560, 275, (238, 240, 244))
    sheet.shape((520, 240), (600, 150), (560, 150), (470, 225), colour=(220, 225, 232))
    sheet.shape((360, 245), (250, 400), (200, 400), (270, 245), colour=(205, 210, 220))
    sheet.shape((350, 232), (290, 130), (255, 130), (270, 232), colour=(215, 220, 228))
    sheet.shape((90, 245), (70, 250), (110, 262), colour=(60, 70, 90))
    for x in range(150, 480, 26):
        sheet.round(x, 232, x + 10, 242, (70, 90, 120))
    return sheet.png()


def truck() -> bytes:
    """A lorry on a road."""
    sheet = Sheet((205, 215, 225), (225, 228, 230))
    sheet.box(0, 370, WIDTH, HEIGHT, (120, 120, 122))
    sheet.box(60, 120, 420, 340, (235, 235, 230))
    sheet.box(60, 300, 420, 345, (200, 60, 40))
    sheet.shape((430, 190), (520, 190), (575, 270), (580, 345), (430, 345), colour=(200, 60, 40))
    sheet.shape((450, 205), (512, 205), (550, 265), (450, 265), colour=(120, 160, 190))
    sheet.box(50, 340, 590, 360, (50, 50, 54))
    for x in (110, 200, 480):
        sheet.round(x, 320, x + 80, 400, (25, 25, 28))
        sheet.round(x + 25, 345, x + 55, 375, (150, 150, 155))
    return sheet.png()


DRAWINGS: Sequence[Callable[[], bytes]] = (ship, airplane, truck)
