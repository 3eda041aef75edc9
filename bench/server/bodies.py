"""Requests of every kind the service takes, good and malformed, as they go over the wire."""

import base64
import io
import json
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from PIL import Image

from ..load.plan import Shot

KINDS = ("raw", "multipart", "json", "npy")

VARIETY = 8
"""Different images of a row."""

_BOUNDARY = "milkweed-bench-4f1c"


def pictures(size: int, count: int = VARIETY) -> list[np.ndarray]:
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
    return [_saved(partial(Image.fromarray(image).save, format="JPEG", quality=90)) for image in images]


def array_bodies(images: Sequence[np.ndarray]) -> list[bytes]:
    """The pictures as NPY."""
    return [_saved(partial(np.save, arr=image)) for image in images]


def shots(kind: str, encoded: Sequence[bytes], images: int = 1) -> tuple[Shot, ...]:
    """Good requests of `images` images each, beginning with each of the encoded ones; malformed ones beside them.

    Args:
        encoded: JPEGs, or with npy, NPY bodies of one shape.

    Raises:
        ValueError: several images raw.
    """
    if kind == "raw" and images > 1:
        raise ValueError(f"body raw holds one image: {images} images need multipart, json or npy")
    turns = [[encoded[(first + place) % len(encoded)] for place in range(images)] for first in range(len(encoded))]
    good = tuple(_request(kind, turn) for turn in turns)
    broken = [[_cut(image) for image in turn] for turn in turns]
    return (*good, *(_request(kind, turn, good=False) for turn in broken), _garbage(kind))


def _request(kind: str, images: Sequence[bytes], good: bool = True) -> Shot:
    if kind == "raw":
        return Shot(images[0], "image/jpeg", good)
    if kind == "npy":
        return Shot(_stacked(images) if good else images[0], "application/x-npy", good)
    if kind == "json":
        body = json.dumps({"images": [base64.b64encode(image).decode() for image in images]})
        return Shot(body.encode(), "application/json", good)
    parts = [
        b'--%b\r\nContent-Disposition: form-data; name="image"; filename="%d.jpg"\r\n'
        b"Content-Type: image/jpeg\r\n\r\n%b\r\n" % (_BOUNDARY.encode(), number, image)
        for number, image in enumerate(images)
    ]
    return Shot(b"".join(parts) + f"--{_BOUNDARY}--\r\n".encode(), f"multipart/form-data; boundary={_BOUNDARY}", good)


def _stacked(images: Sequence[bytes]) -> bytes:
    """One array with a batch axis, where there are several."""
    if len(images) == 1:
        return images[0]
    return _saved(lambda out: np.save(out, np.stack([np.load(io.BytesIO(image)) for image in images])))


def _cut(image: bytes) -> bytes:
    """The header is right, the end is missing: only who decodes it, or counts, can tell."""
    return image[: len(image) * 2 // 3]


def _garbage(kind: str) -> Shot:
    """Bytes that are no image, or no body of the kind."""
    noise = np.random.default_rng(0).bytes(600)
    if kind == "json":
        return Shot(b'{"images": ["' + noise.hex().encode(), "application/json", good=False)
    return Shot(noise, _request(kind, [b""], good=False).content_type, good=False)


def _saved(save: Callable[[io.BytesIO], object]) -> bytes:
    out = io.BytesIO()
    save(out)
    return out.getvalue()
