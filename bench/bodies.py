"""Encoded images for benchmarks: photographs of a folder, made ones, and bad bodies made from good ones."""

import random
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image


def photos(folder: Path, limit: int | None = None) -> list[bytes]:
    """JPEGs of a folder in order of their names.

    Raises:
        ValueError: there is none.
    """
    paths = sorted(path for path in folder.glob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not paths:
        raise ValueError(f"no JPEG in {folder}: expected *.jpg or *.jpeg")
    return [path.read_bytes() for path in paths[:limit]]


def made_jpegs(count: int) -> list[bytes]:
    """Made JPEGs of the usual size of ImageNet's, upright and lying: smooth shapes and grain, no photographs."""
    sides = ((375, 500), (500, 375))
    return [make_jpeg(60_000 + 8_000 * (number % 12), *sides[number % 2]) for number in range(count)]


def make_jpeg(size_bytes: int, width: int = 500, height: int = 375) -> bytes:
    """A photograph-like JPEG (smooth shapes, some grain) of ImageNet's usual size, near `size_bytes`."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [128 + 90 * np.sin(x / a + c) * np.cos(y / b) for a, b, c in ((37, 53, 0), (61, 29, 1), (23, 71, 2))]
    grain = np.random.default_rng(0).normal(0, 12, (height, width, 3))
    image = Image.fromarray(np.clip(np.stack(waves, -1) + grain, 0, 255).astype(np.uint8))
    bodies = [encoded(image, "JPEG", quality=quality) for quality in range(30, 100)]
    return min(bodies, key=lambda body: abs(len(body) - size_bytes))


def pictures(size: int, count: int = 8) -> list[np.ndarray]:
    """Different smooth pictures, uint8 (size, size, 3): patterns of their own colours and directions."""
    y, x = np.mgrid[0:size, 0:size] / size
    made = []
    for number in range(count):
        draws = np.random.default_rng(number)
        colour, slope = draws.uniform(0, 255, 3), draws.uniform(-9, 9, (2, 3))
        waves = colour + 120 * np.sin(x[..., None] * slope[0] + y[..., None] * slope[1] + draws.uniform(0, 6, 3))
        made.append(waves.clip(0, 255).astype(np.uint8))
    return made


def jpegs(images: Sequence[np.ndarray]) -> list[bytes]:
    """The pictures as JPEGs, quality 90."""
    return [encoded(Image.fromarray(image), "JPEG", quality=90) for image in images]


def arrays(images: Sequence[np.ndarray]) -> list[bytes]:
    """The pictures as NPY."""
    bodies = [BytesIO() for _ in images]
    for body, image in zip(bodies, images, strict=True):
        np.save(body, image)
    return [body.getvalue() for body in bodies]


def enlarged(photo: bytes, width: int = 4000, height: int = 3000, seed: int = 0) -> bytes:
    """A photograph as a phone would have it: enlarged, with grain (it decides the size), quality 90, 4:2:0."""
    image = Image.open(BytesIO(photo)).convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
    tile = np.random.default_rng(seed).normal(0, 4, (500, 500, 1))
    grain = np.tile(tile, (-(-height // 500), -(-width // 500), 1))[:height, :width]
    levels = np.asarray(image, np.float32) + grain.astype(np.float32)
    return encoded(Image.fromarray(levels.clip(0, 255).astype(np.uint8)), "JPEG", quality=90, subsampling=2)


def encoded(image: Image.Image, format: str, **options: object) -> bytes:
    """An image in a format of Pillow."""
    body = BytesIO()
    image.save(body, format, **options)
    return body.getvalue()


def refused_by_header(photo: bytes, number: int) -> bytes:
    """A body that its first bytes give away: empty, no image, a lie about its size, cut off before the scan."""
    frame = _segment(photo, range(0xC0, 0xC3))
    before, after = photo[: frame + 5], photo[frame + 9 :]  # of the four bytes that are height and width
    return (
        b"",
        b"<html><body>413</body></html>",
        random.Random(number).randbytes(4096),
        before + b"\xff\xdc\xff\xdc" + after,
        before + bytes(4) + after,
        photo[:2],
        photo[:100],
        b"qoif" + photo[4:],
    )[number % 8]


def without_tables(photo: bytes, number: int = 0) -> bytes:
    """A body that looks whole and that no decoder accepts: its Huffman table has no codes."""
    at = _segment(photo, range(0xC4, 0xC5)) + 5
    return photo[:at] + bytes(16) + photo[at + 16 :]


def truncated(photo: bytes, number: int = 0) -> bytes:
    """A body cut off inside its scan, one to eight ninths in."""
    start = _segment(photo, range(0xDA, 0xDB))
    return photo[: start + (len(photo) - start) * (1 + number % 8) // 9]


def closed_again(photo: bytes, number: int = 0) -> bytes:
    """A truncated body with an end marker put behind it: its bytes alone do not give it away."""
    return truncated(photo, number) + b"\xff\xd9"


def damaged_scan(photo: bytes, number: int = 0) -> bytes:
    """A body with 1 kB of its scan overwritten, no marker among it."""
    start = _segment(photo, range(0xDA, 0xDB)) + 14
    at = start + (len(photo) - start) * (1 + number % 8) // 10
    noise = bytes(random.Random(number).randrange(255) for _ in range(1000))
    return photo[:at] + noise + photo[at + 1000 :]


BAD_KINDS: dict[str, Callable[[bytes, int], bytes]] = {
    "refused by header": refused_by_header,
    "no Huffman codes": without_tables,
    "truncated": truncated,
    "cut, end put back": closed_again,
    "scan overwritten": damaged_scan,
}
"""Ways to spoil a JPEG: of the photograph and a number that varies the damage."""

SILENT_KINDS = ("cut, end put back", "scan overwritten")
"""Only a strict decoder refuses these: others answer them, with the garbage that is left."""


def baseline(bodies: Sequence[bytes]) -> list[bytes]:
    """The JPEGs that can be spoilt as BAD_KINDS says: those of one scan, in one piece."""
    return [body for body in bodies if _has(body, b"\xff\xc0") and body.count(b"\xff\xda") == 1]


def _has(body: bytes, marker: bytes) -> bool:
    return marker in body and body.index(marker) < body.index(b"\xff\xda")


def _segment(body: bytes, codes: range) -> int:
    """Where the first segment with one of these marker codes begins, its 0xFF included."""
    at = 2
    while body[at + 1] not in codes:
        at += 2 + int.from_bytes(body[at + 2 : at + 4], "big")
    return at
