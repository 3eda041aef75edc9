"""What a client scales before it sends it, what it leaves, and how far answers move."""

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from milkweed.client import BadAnswer, Model
from milkweed.client.shrink import kept_side, shrunk
from milkweed.loaders import PillowLoader, PreprocessSpec

from ...support.fake_server import fake_server
from .answering import answers, response, url
from .test_images import saved

Call = Callable[..., Any]
WIDTH, HEIGHT, SIDE = 900, 600, 100


@pytest.fixture(scope="module")
def photo() -> Image.Image:
    """Smooth shapes and noise."""
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 255, (6, 9, 3), dtype=np.uint8))
    levels = np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)).astype(float)
    return Image.fromarray((levels + rng.normal(0, 8, levels.shape)).clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize(("format", "orientation"), [("JPEG", 1), ("JPEG", 6), ("PNG", 3), ("WEBP", 1)])
def test_large_photographs_are_scaled_and_stay_turned(photo: Image.Image, format: str, orientation: int) -> None:
    data = saved(photo, format, orientation)
    small = Image.open(io.BytesIO(shrunk(data, SIDE)))
    assert (small.format, small.size, small.getexif()[0x0112]) == ("JPEG", (150, 100), orientation)
    whole, expected = (ImageOps.exif_transpose(Image.open(io.BytesIO(one))) for one in (shrunk(data, SIDE), data))
    reference = np.asarray(expected.resize(whole.size, Image.Resampling.BOX)).astype(float)
    assert np.abs(np.asarray(whole).astype(float) - reference).mean() < 3


def test_a_models_input_moves_little(photo: Image.Image) -> None:
    spec = {"size": 45, "crop_pct": 0.9, "interpolation": "bicubic", "mean": [0.5] * 3, "std": [0.25] * 3}
    data = saved(photo, "JPEG", quality=95)
    loader = PillowLoader(PreprocessSpec.from_dict(spec))
    (before,), (after,) = (loader.load([one]).pixels for one in (data, shrunk(data, 100)))
    loader.close()
    assert np.abs(before - after).mean() < 0.02


@pytest.mark.parametrize(
    "make",
    [
        lambda photo: saved(photo.resize((149, 149)), "JPEG"),  # less than half as large again
        lambda photo: saved(photo.convert("CMYK"), "JPEG"),
        lambda photo: saved(photo.convert("RGBA"), "PNG"),
        lambda photo: saved(photo, "BMP"),
        lambda photo: saved(photo, "JPEG")[:5000],
        lambda photo: saved(photo, "PNG")[:5000],
        lambda photo: saved(photo, "WEBP", save_all=True, append_images=[photo.rotate(90)]),
        lambda photo: saved(Image.new("RGB", (900, 600)), "WEBP", lossless=True),  # smaller than any JPEG
        lambda photo: saved(photo, "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff"),
        lambda photo: b"no image",
        lambda photo: b"",
    ],
    ids=[
        "small",
        "CMYK",
        "alpha",
        "BMP",
        "torn JPEG",
        "torn PNG",
        "moving",
        "tiny file",
        "broken EXIF",
        "text",
        "empty",
    ],
)
def test_what_is_no_large_photograph_is_sent_as_it_is(photo: Image.Image, make: Callable[..., bytes]) -> None:
    data = make(photo)
    assert shrunk(data, SIDE) is data


def model(**preprocess: Any) -> Model:
    return Model("made", "0", "a", 2, True, {"preprocess": preprocess} if preprocess else {})


def test_the_largest_model_decides() -> None:
    assert kept_side([model(size=224, crop_pct=0.875), model(size=32, crop_pct=1.0)]) == 512
    for odd in ([model()], [model(size=8, crop_pct=0)], [model(size=None, crop_pct=1)], []):
        with pytest.raises(BadAnswer, match="does not say what its models look at"):
            kept_side(odd)


@pytest.mark.parametrize(("method", "several"), [("classify", False), ("classify", True), ("stream", True)])
def test_clients_ask_once_and_send_less(call: Call, photo: Image.Image, method: str, several: bool) -> None:
    data = saved(photo, "JPEG", quality=95)
    about = {"name": "m", "version": "0", "arch": "a", "num_classes": 2, "default": True}
    models = response(200, json.dumps({"models": [{**about, "preprocess": {"size": 40, "crop_pct": 0.8}}]}))

    async def say(number: int, body: bytes) -> bytes:
        return models if number == 0 else answers([b"photo"])

    with fake_server(say) as fake:
        images = [data, data] if several else data
        got = call(url(fake), method, images, client={"shrink": True, "batch_size": 1, "concurrency": 1})
    assert {each.predictions[0].label for each in (got if several else [got])} == {"photo"}
    assert [head.split()[1] for head in fake.heads] == [b"/v1/models"] + [b"/classify"] * (1 + several)
    assert fake.bodies[1:] == [shrunk(data, 100)] * (1 + several)
    assert len(fake.bodies[1]) < len(data) / 10
