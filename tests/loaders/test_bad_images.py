"""The corpus of odd and broken files: the code each one gets, alone and between good neighbours."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from milkweed.loaders import FORMATS, ImageLimits, PreprocessSpec, create_loader
from milkweed.loaders.headers.info import OPT_IN_FORMATS

SPEC = PreprocessSpec()
GOOD = None
EXPECTED = {
    "00_good.jpg": GOOD,
    "01_trunc50.jpg": "undecodable",
    "02_trunc_header.jpg": "undecodable",
    "02c_soi_only.jpg": "undecodable",
    "03_zero.bin": "empty",
    "04_text.txt": "unsupported_format",
    "04c_random.bin": "unsupported_format",
    "05_corrupt_scan.jpg": "undecodable",
    "06b_bomb30k_rgb.png": "too_many_pixels",
    "07_jpeg_lying_65500.jpg": "too_many_pixels",
    "08_cmyk.jpg": GOOD,
    "09_png16_gray.png": GOOD,
    "10_gray.jpg": GOOD,
    "10b_gray.png": GOOD,
    "10d_1bit.png": GOOD,
    "11_palette.png": GOOD,
    "11b_palette_trns.png": GOOD,
    "12_rgba.png": GOOD,
    "13_exif3.jpg": GOOD,
    "13_exif6.jpg": GOOD,
    "13p_exif6.png": GOOD,
    "14_anim.gif": GOOD,
    "14b_static.gif": GOOD,
    "14c_anim.webp": GOOD,
    "15_progressive.jpg": GOOD,
    "16_1x1.png": GOOD,
    "16b_1x1.jpg": GOOD,
    "17_8000x2.png": "too_many_pixels",  # aspect ratio 4000:1, limit 100:1
    "17b_2x8000.jpg": "too_many_pixels",
    "18_avif.avif": GOOD,
    "19_heic.heic": "unsupported_format",
    "20_jxl.jxl": "unsupported_format",
    "21_jp2.jp2": "unsupported_format",
    "21b_htj2k.jph": "unsupported_format",
    "22_tiff.tif": GOOD,
    "22b_tiff_lzw.tif": GOOD,
    "22c_tiff_jpeg.tif": GOOD,
    "22e_tiff_multipage.tif": GOOD,
    "23_bmp.bmp": GOOD,
    "24_ppm.ppm": GOOD,
    "25_ico.ico": "unsupported_format",
    "26_ljpeg.jpg": GOOD,
    "26b_jpegls.jls": "unsupported_format",
    "27_qoi.qoi": "unsupported_format",
    "28_webp_lossless.webp": GOOD,
    "29_png.png": GOOD,
    "29b_png_trunc.png": "undecodable",
    "30_trailing.jpg": GOOD,
    "31_jpeg_adobe_rgb.jpg": GOOD,
    "32_icc.jpg": GOOD,
    "33_444.jpg": GOOD,
    "33c_422.jpg": GOOD,
}


@pytest.fixture(scope="module")
def folder(shared: Path) -> Path:
    return shared / "data" / "bad-images"


def test_every_file_is_in_the_table(folder):
    assert {path.name for path in folder.iterdir()} == set(EXPECTED)


@pytest.fixture(scope="module", params=["cpu", "pillow", "dali"])
def loader(request):
    if request.param == "dali":
        pytest.importorskip("nvidia.dali", reason="the extra `dali` is not installed")
    made = create_loader(request.param, SPEC)
    yield made
    made.close()


def test_every_file_gets_its_code_and_neighbours_keep_their_bits(loader, folder, picture, encoded):
    bodies = [encoded(picture(120, 90, seed), "JPEG") for seed in (1, 2)]
    good = loader.load(bodies).pixels
    for file, code in EXPECTED.items():
        body = (folder / file).read_bytes()
        alone = loader.load([body])
        between = loader.load([bodies[0], body, bodies[1]])
        assert np.array_equal(between.pixels[[0, -1]], good), file
        if code is GOOD:
            assert alone.ok == [0], alone.errors
            assert np.array_equal(between.pixels[1], alone.pixels[0]), file
        else:
            assert (alone.ok, between.ok) == ([], [0, 2])
            assert {alone.errors[0].code, between.errors[1].code} == {code}, file
            assert len(alone.errors[0].message) < 200


def test_all_at_once_flags_the_right_indices(folder):
    bodies = [(folder / file).read_bytes() for file in EXPECTED]
    result = create_loader("cpu", SPEC, num_threads=2).load(bodies)
    assert {list(EXPECTED)[i]: error.code for i, error in result.errors.items()} == {
        file: code for file, code in EXPECTED.items() if code is not GOOD
    }


@pytest.mark.parametrize("file", [file for file, code in EXPECTED.items() if code is GOOD])
def test_good_ones_agree_between_loaders(file, loader, folder, levels):
    body = (folder / file).read_bytes()
    off = abs(levels(loader, body, SPEC) - levels(create_loader("pillow", SPEC), body, SPEC))
    assert off.mean() <= {"cpu": 0.05, "pillow": 0, "dali": 0.15}[loader.name]
    assert off.max() <= 8


@pytest.mark.parametrize("name", ["cpu", "pillow"])
@pytest.mark.parametrize("file", ["21_jp2.jp2", "21b_htj2k.jph"])
def test_jpeg_2000_is_the_lossless_picture_once_turned_on(name, file, folder, encoded):
    loader = create_loader(name, SPEC, ImageLimits(formats=FORMATS + OPT_IN_FORMATS))
    with Image.open(folder / "00_good.jpg") as original:  # both were made of it without loss
        lossless = encoded(original, "PNG")
    result = loader.load([(folder / file).read_bytes()])
    assert not result.errors
    assert np.array_equal(result.pixels, create_loader("pillow", SPEC).load([lossless]).pixels)
