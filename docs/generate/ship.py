"""Draws docs/pictures/ship.jpg, an image to ask the demo model about: `python docs/generate/ship.py`."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

OUT = Path(__file__).resolve().parents[1] / "pictures" / "ship.jpg"
WIDTH, HEIGHT = 480, 360
SCALE = 2
"""Drawn larger, then reduced: smooth edges."""
HORIZON = 0.62


def ship() -> Image.Image:
    """A steamer on the sea, RGB, WIDTH x HEIGHT px."""
    image = Image.new("RGB", (WIDTH * SCALE, HEIGHT * SCALE))
    draw = ImageDraw.Draw(image)
    for y in range(HEIGHT * SCALE):
        down = y / (HEIGHT * SCALE)
        below = (down - HORIZON) / (1 - HORIZON)
        sky, sea = (
            (150 + 70 * down, 185 + 40 * down, 225 + 10 * down),
            (40 + 30 * below, 85 + 30 * below, 120 + 25 * below),
        )
        draw.line([(0, y), (WIDTH * SCALE, y)], fill=tuple(int(v) for v in (sky if down < HORIZON else sea)))
    rng = np.random.default_rng(0)
    for _ in range(400):
        x, y = int(rng.integers(0, WIDTH * SCALE)), int(rng.integers(int(HEIGHT * SCALE * 0.63), HEIGHT * SCALE))
        draw.line([(x, y), (x + int(rng.integers(10, 60)), y)], fill=(110, 150, 175), width=2)

    def points(*places: tuple[int, int]) -> list[tuple[int, int]]:
        return [(x * SCALE, y * SCALE) for x, y in places]

    draw.polygon(points((60, 190), (425, 182), (392, 238), (95, 238)), fill=(35, 40, 55))
    draw.polygon(points((84, 225), (402, 222), (392, 238), (95, 238)), fill=(150, 40, 35))
    draw.rectangle(points((130, 150), (330, 190)), fill=(238, 238, 232))
    draw.rectangle(points((160, 120), (270, 150)), fill=(225, 225, 220))
    for x in range(140, 325, 18):
        draw.rectangle(points((x, 163), (x + 8, 171)), fill=(60, 80, 100))
    draw.polygon(points((190, 75), (225, 75), (228, 120), (187, 120)), fill=(200, 60, 45))
    draw.rectangle(points((190, 75), (226, 86)), fill=(30, 30, 35))
    draw.line(points((350, 100), (350, 188)), fill=(70, 60, 50), width=6)
    draw.line(points((350, 104), (415, 184)), fill=(90, 90, 90), width=2)
    return image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS)


if __name__ == "__main__":
    ship().save(OUT, quality=85)
