"""The reference loader equals timm's eval transform bit for bit."""

from io import BytesIO

import numpy as np
import PIL
import pytest
from PIL import Image, ImageOps

from milkweed.loaders import CpuLoader, ImageLimits, PillowLoader, PreprocessSpec, validate

ANY_ASPECT = ImageLimits(max_aspect=100_000)
SIZES = [
    (500, 375),
    (375, 501),
    (333, 500),
    (40, 30),
    (31, 97),
    (224, 224),
    (256, 256),
    (1, 1),
    (7, 1),
    (1, 90),
]


def timm_transform(spec: PreprocessSpec):
    data = pytest.importorskip("timm.data")
    return data.create_transform(
        spec.size,
        interpolation=spec.interpolation,
        crop_pct=spec.crop_pct,
        crop_mode=spec.crop_mode,
        mean=spec.mean,
        std=spec.std,
        is_training=False,
    )


def assert_equals_timm(body: bytes, spec: PreprocessSpec) -> None:
    expected = timm_transform(spec)(Image.open(BytesIO(body)).convert("RGB"))
    result = PillowLoader(spec, ANY_ASPECT).load([body])
    assert result.ok == [0]
    assert np.array_equal(result.pixels[0], expected)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_equals_timm_for_odd_sizes(size, interpolation, picture, encoded):
    spec = PreprocessSpec(interpolation=interpolation)
    assert_equals_timm(encoded(picture(*size), "PNG"), spec)


@pytest.mark.parametrize("crop_pct", [0.875, 0.9, 0.95, 1.0])
@pytest.mark.parametrize("size", [32, 111, 224, 518])
def test_equals_timm_for_specs(size, crop_pct, picture, encoded):
    spec = PreprocessSpec(size=size, crop_pct=crop_pct, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    assert_equals_timm(encoded(picture(301, 203), "PNG"), spec)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("side", "crop_pct"), [(63, 1.0), (224, 1.0), (192, 0.9), (101, 0.8), (63, 0.9), (384, 0.951)])
def test_squashed_pictures_equal_timm(size, side, crop_pct, picture, encoded):
    """The last two sizes lose 7 and 19 px to the crop, which timm rounds otherwise than transformers."""
    interpolation = "bilinear" if side == 101 else "bicubic"
    spec = PreprocessSpec(size=side, crop_pct=crop_pct, crop_mode="squash", interpolation=interpolation)
    body = encoded(picture(*size), "PNG")
    assert_equals_timm(body, spec)
    assert np.array_equal(
        CpuLoader(spec, ANY_ASPECT).load([body]).pixels, PillowLoader(spec, ANY_ASPECT).load([body]).pixels
    )


@pytest.mark.parametrize("size", [(64, 64), (100, 30), (30, 101)])
@pytest.mark.parametrize("crop_pct", [1.3, 2.0])
def test_padding_equals_timm(size, crop_pct, picture, encoded):
    assert_equals_timm(encoded(picture(*size), "PNG"), PreprocessSpec(size=63, crop_pct=crop_pct))


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}, {"subsampling": 1}])
def test_jpeg_equals_timm(options, picture, encoded):
    assert_equals_timm(encoded(picture(321, 243), "JPEG", **options), PreprocessSpec())


@pytest.mark.parametrize("mode", ["L", "1", "P", "RGBA", "LA", "CMYK"])
def test_modes_equal_timm(mode, picture, encoded):
    format = "TIFF" if mode == "CMYK" else "PNG"
    assert_equals_timm(encoded(picture(90, 70).convert(mode), format), PreprocessSpec(size=32))


def test_infos_are_used_and_counted(picture, encoded):
    bodies = [encoded(picture(20, 20, seed), "PNG") for seed in range(3)]
    loader = PillowLoader(PreprocessSpec(size=32))
    told = loader.load(bodies, [validate(bodies[0]), None, validate(bodies[2])])
    assert np.array_equal(told.pixels, loader.load(bodies).pixels)
    assert set(told.cpu_seconds) == {"inspect", "decode", "resize", "normalise"}
    with pytest.raises(ValueError, match="2 infos for 3 items"):
        loader.load(bodies, [None, None])


def test_nothing_in_nothing_out():
    result = PillowLoader(PreprocessSpec(size=32)).load([])
    assert (result.ok, result.errors, result.pixels.shape) == ([], {}, (0, 3, 32, 32))


@pytest.mark.parametrize("size", [(259, 777), (300, 601), (300, 600), (100, 900), (777, 259), (64, 6000)])
@pytest.mark.parametrize("orientation", [1, 3, 5, 6, 7, 8])
def test_tall_pictures_that_shrink_are_resized_along_columns_first_as_from_pillow_13(
    size, orientation, picture, encoded
):
    if int(PIL.__version__.partition(".")[0]) < 13:
        pytest.skip("older Pillow resizes along rows first, always")
    exif = Image.Exif()
    exif[0x0112] = orientation
    body = encoded(picture(*size), "PNG", exif=exif)
    spec = PreprocessSpec(size=64)
    upright = ImageOps.exif_transpose(Image.open(BytesIO(body)))
    result = PillowLoader(spec, ANY_ASPECT).load([body])
    assert np.array_equal(result.pixels[0], timm_transform(spec)(upright.convert("RGB")))
