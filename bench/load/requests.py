"""Requests of every kind the service takes, good and malformed, from encoded images."""

import base64
import io
import json
import random
from collections.abc import Sequence

import numpy as np

from .plan import Shot

_BOUNDARY = "milkweed-bench-4f1c"
MULTIPART = f"multipart/form-data; boundary={_BOUNDARY}"


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
    good = (_request(kind, turn) for turn in turns)
    broken = (_request(kind, [cut(image) for image in turn], good=False) for turn in turns)
    return (*good, *broken, _garbage(kind))


def multipart(images: Sequence[bytes], content_type: str = "image/jpeg") -> bytes:
    """A form with a file for each image; its own content type is MULTIPART."""
    parts = [
        b'--%b\r\nContent-Disposition: form-data; name="image"; filename="%d"\r\nContent-Type: %b\r\n\r\n%b\r\n'
        % (_BOUNDARY.encode(), number, content_type.encode(), image)
        for number, image in enumerate(images)
    ]
    return b"".join(parts) + f"--{_BOUNDARY}--\r\n".encode()


def base64_json(images: Sequence[bytes]) -> bytes:
    """The images in a JSON object."""
    return json.dumps({"images": [base64.b64encode(image).decode() for image in images]}).encode()


def cut(image: bytes) -> bytes:
    """An image whose header is right and whose end is missing: only who decodes it, or counts, can tell."""
    return image[: len(image) * 2 // 3]


def _request(kind: str, images: Sequence[bytes], good: bool = True) -> Shot:
    if kind == "raw":
        return Shot(images[0], "image/jpeg", good)
    if kind == "npy":
        return Shot(_stacked(images) if good else images[0], "application/x-npy", good)
    if kind == "json":
        return Shot(base64_json(images), "application/json", good)
    return Shot(multipart(images), MULTIPART, good)


def _stacked(images: Sequence[bytes]) -> bytes:
    """One array, with a batch axis where there are several images."""
    if len(images) == 1:
        return images[0]
    out = io.BytesIO()
    np.save(out, np.stack([np.load(io.BytesIO(image)) for image in images]))
    return out.getvalue()


def _garbage(kind: str) -> Shot:
    """Bytes that are no image, or no body of the kind."""
    noise = random.Random(0).randbytes(600)
    body = b'{"images": ["' + noise.hex().encode() if kind == "json" else noise
    return Shot(body, _request(kind, [b""], good=False).content_type, good=False)
