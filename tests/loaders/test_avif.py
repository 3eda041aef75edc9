"""AVIF bodies whose container and AV1 streams disagree are refused before anything is decoded."""

import base64
import struct
import time
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from milkweed.loaders import CpuLoader, InputError, PreprocessSpec
from milkweed.loaders.guard import inspect

TEN_BIT = base64.b64decode(
    "AAAAIGZ0eXBhdmlmAAAAAGF2aWZtaWYxbWlhZk1BMUIAAADrbWV0YQAAAAAAAAAhaGRscgAAAAAAAAAAcGljdAAAAAAAAAAAAAAA"
    "AAAAAAAOcGl0bQAAAAAAAQAAAB5pbG9jAAAAAEQAAAEAAQAAAAEAAAETAAAAIQAAAChpaW5mAAAAAAABAAAAGmluZmUCAAAAAAEA"
    "AGF2MDFDb2xvcgAAAABqaXBycAAAAEtpcGNvAAAAFGlzcGUAAAAAAAAAEAAAABAAAAAQcGl4aQAAAAADCgoKAAAADGF2MUOBAEwA"
    "AAAAE2NvbHJuY2x4AAIAAgAGgAAAABdpcG1hAAAAAAAAAAEAAQQBAoMEAAAAKW1kYXQSAAoJGAz/26BAQNCAMhIcR4eF3cAALAAA"
    "AHV9Wb3JYoA="
)


def said_to_be(body: bytes, box: bytes, width: int, height: int) -> bytes:
    """The body with another size in every `ispe` or `tkhd` box."""
    at = body.find(box)
    while at >= 0:
        if box == b"ispe":
            where, size = at + 8, struct.pack(">II", width, height)
        else:  # 16.16 numbers, behind times of 4 or 8 bytes
            where = at + 60 + (32 if body[at + 4] else 20)
            size = struct.pack(">II", width << 16, height << 16)
        body = body[:where] + size + body[where + 8 :]
        at = body.find(box, at + 4)
    return body


def see_through(image: Image.Image) -> Image.Image:
    """The image with its own grey as alpha: libavif writes no alpha where all is opaque."""
    image.putalpha(image.convert("L"))
    return image


def with_brand(body: bytes, brand: bytes) -> bytes:
    """The body with another major brand."""
    return body[:8] + brand + body[12:]


@pytest.fixture(scope="module")
def loader():
    loader = CpuLoader(PreprocessSpec(size=32))
    yield loader
    loader.close()


@pytest.fixture(scope="module")
def still(picture, encoded) -> bytes:
    return encoded(see_through(picture(60, 40)), "AVIF", speed=10)


@pytest.fixture(scope="module")
def moving(picture, encoded) -> bytes:
    frames = [see_through(picture(60, 40, seed)) for seed in range(3)]
    return encoded(frames[0], "AVIF", speed=10, save_all=True, append_images=frames[1:], duration=40)


def refusal(body: bytes) -> InputError:
    with pytest.raises(InputError) as caught:
        inspect(body)
    return caught.value


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (63, 65), (640, 427)])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0", "4:0:0"])
def test_encoded_pictures_are_accepted(picture, encoded, loader, size, mode, subsampling):
    image = see_through(picture(*size)) if mode == "RGBA" else picture(*size).convert(mode)
    body = encoded(image, "AVIF", speed=10, subsampling=subsampling)
    info = inspect(body)
    assert (info.width, info.height, info.frames, info.cost) == (*size, 1, "avif")
    assert loader.load([body]).ok == [0]


def test_metadata_tiles_and_qualities_are_accepted(picture, encoded, loader):
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "a description"
    exif.get_ifd(0x8769)[0x9003] = "2024:01:01 00:00:00"
    for options in (
        {"exif": exif, "xmp": b"<x/>", "icc_profile": b"\0" * 200},
        {"tile_rows": 1, "tile_cols": 1},
        {"quality": 100, "subsampling": "4:4:4"},
        {"range": "limited", "quality": 1},
    ):
        body = encoded(picture(300, 200), "AVIF", speed=10, **options)
        assert inspect(body).orientation == (6 if "exif" in options else 1)
        assert loader.load([body]).ok == [0]


def test_ten_bits_are_accepted(loader):
    assert inspect(TEN_BIT).pixels == 256
    assert loader.load([TEN_BIT]).ok == [0]


def test_animation_is_accepted(moving, loader):
    assert (inspect(moving).frames, inspect(moving).mode) == (3, "RGBA")
    assert loader.load([moving, with_brand(moving, b"avif")]).ok == [0, 1]


@pytest.mark.parametrize("size", [(6, 4), (60, 41), (59, 40), (6000, 4000), (40, 60)])
def test_container_that_lies_is_refused(still, moving, size):
    for body in (said_to_be(still, b"ispe", *size), said_to_be(moving, b"tkhd", *size)):
        error = refusal(body)
        assert error.code == "undecodable"
        assert error.message == f"AVIF says {size[0]}x{size[1]} px but its stream is 60x40 px"


def test_stream_far_larger_than_the_container_says_costs_nothing(encoded, loader):
    body = said_to_be(encoded(Image.new("RGB", (4000, 3000)), "AVIF", speed=10), b"ispe", 64, 64)
    start = time.process_time()
    result = loader.load([body])
    assert result.errors[0].message == "AVIF says 64x64 px but its stream is 4000x3000 px"
    assert time.process_time() - start < 0.05


def test_cut_off_bodies_are_undecodable(still, moving, loader):
    for body in (still, moving):
        for end in range(24, len(body) - 1, 7):
            result = loader.load([body[:end]])
            assert not result.errors or result.errors[0].code == "undecodable", end


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    moves=st.booleans(),
    changes=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=4)), min_size=1, max_size=4
    ),
)
def test_changed_bodies_raise_nothing_else(still, moving, loader, moves, changes):
    body = bytearray(moving if moves else still)
    for where, what in changes:
        at = 24 + int(where * (min(len(body), 2000) - 28))
        body[at : at + len(what)] = what
    with suppress(InputError):  # our own readers let nothing else out
        inspect(bytes(body))
    result = loader.load([bytes(body)])
    assert not result.errors or result.errors[0].code in ("undecodable", "too_many_pixels")
