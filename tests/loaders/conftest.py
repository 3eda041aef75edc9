"""Pictures and small tools for the loader tests: generated, so that they need no reference data."""

from collections.abc import Callable
from functools import lru_cache
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from milkweed.loaders import Loader, PreprocessSpec


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth colours with some noise: like a photograph to a codec, and different at every pixel."""
    return Image.fromarray(_colours(width, height, seed))


@lru_cache(32)  # most tests draw the same few
def _colours(width: int, height: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / (9 + 3 * c)) * 60 + np.cos(y / (7 + 2 * c)) * 60 for c in range(3)]
    levels = np.stack(waves, -1) + 128 + rng.normal(0, 8, (height, width, 3))
    return levels.clip(0, 255).astype(np.uint8)


def encoded(image: Image.Image, format: str, **options: object) -> bytes:
    """The image as a file of the given format."""
    body = BytesIO()
    if format == "NPY":
        np.save(body, np.asarray(image))
        return body.getvalue()
    image.save(body, format, **options)
    return body.getvalue()


def noise(width: int, height: int, channels: int = 3) -> Image.Image:
    """Random levels, which cost a codec most; a tile of them sixteen times, so that it is made at once."""
    tile = np.random.default_rng(0).integers(0, 256, (height // 4, width // 4, channels), np.uint8)
    return Image.fromarray(np.tile(tile, (4, 4, 1)))


def levels(loader: Loader, body: bytes, spec: PreprocessSpec) -> np.ndarray:
    """What a loader makes of one image, back in levels 0..255 (3, S, S)."""
    result = loader.load([body])
    assert not result.errors, result.errors[0].message
    mean, std = (np.array(values, "f4")[:, None, None] for values in (spec.mean, spec.std))
    return ((result.pixels[0] * std + mean) * 255).round().astype(np.int32)


@pytest.fixture(scope="session", name="picture")
def _picture() -> Callable[..., Image.Image]:
    return picture


@pytest.fixture(scope="session", name="encoded")
def _encoded() -> Callable[..., bytes]:
    return encoded


@pytest.fixture(scope="session", name="levels")
def _levels() -> Callable[..., np.ndarray]:
    return levels


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread() -> None:
    torch.set_num_threads(1)
