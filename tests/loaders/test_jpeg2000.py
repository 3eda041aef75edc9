"""JPEG 2000: boxes and codestreams read, decoded to the pixels that were encoded, refused where they may differ."""

import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from milkweed.loaders import FORMATS, CpuLoader, InputError, Limits, PillowLoader, PreprocessSpec, inspect
from milkweed.loaders.info import OPT_IN_FORMATS
from milkweed.loaders.pillow_door import decode

LIMITS = Limits(formats=FORMATS + OPT_IN_FORMATS)
SPEC = PreprocessSpec(size=48)
LAYOUTS = [
    {},
    {"no_jp2": True},
    {"num_resolutions": 1},
    {"tile_size": (64, 48)},
    {"tile_size": (64, 64), "tile_offset": (3, 2), "offset": (10, 20)},
    {"quality_layers": [40, 10, 1]},
    {"precinct_size": (64, 64), "codeblock_size": (16, 32)},
    {"progression": "RPCL"},
    {"progression": "CPRL", "tile_size": (96, 96)},
    {"mct": 0},
    {"plt": True},
    {"comment": "a" * 3000},
]


def refusal(body: bytes) -> InputError:
    with pytest.raises(InputError) as caught:
        inspect(body, LIMITS)
    return caught.value


def samples(mode: str) -> np.ndarray:
    """Noise: 201x150 px of a mode."""
    rng = np.random.default_rng(0)
    if mode == "I;16":
        return rng.integers(0, 65536, (150, 201), np.uint16)
    channels = len(mode)
    return rng.integers(0, 256, (150, 201, channels) if channels > 1 else (150, 201), np.uint8)


def box(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(content), name) + content


def segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">HH", marker, len(content) + 2) + content


# Pillow 13.0 writes tiles of 16 bits wrongly: see the test below
@pytest.mark.parametrize(
    ("mode", "options"),
    [
        (mode, options)
        for mode in ("L", "LA", "RGB", "RGBA", "I;16")
        for options in LAYOUTS
        if mode != "I;16" or "tile_size" not in options
    ],
)
def test_decodes_to_what_was_encoded(mode, options, encoded):
    levels = samples(mode)
    body = encoded(Image.fromarray(levels), "JPEG2000", **options)
    info = inspect(body, LIMITS)
    assert (info.format, info.width, info.height, info.mode) == ("JPEG2000", 201, 150, mode)
    assert np.array_equal(np.asarray(decode(body, info)), levels)


def test_tiles_of_16_bits_are_put_where_they_belong(encoded):
    levels = np.random.default_rng(0).integers(0, 65536, (64, 128), np.uint16)
    left, right = (
        encoded(Image.fromarray(np.ascontiguousarray(half)), "JPEG2000", no_jp2=True) for half in np.hsplit(levels, 2)
    )
    start = left.index(b"\xff\x90")
    head = left[:8] + struct.pack(">I", 128) + left[12:start]  # twice as wide, tiles of 64 px as before
    second = bytearray(right[right.index(b"\xff\x90") :])
    second[5] = 1  # the number of the tile
    body = head + left[start:-2] + bytes(second)
    assert np.array_equal(np.asarray(decode(body, inspect(body, LIMITS))), levels)


@pytest.mark.parametrize("loader", [CpuLoader, PillowLoader])
@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "I;16"])
def test_loads_as_the_png_of_the_same_pixels(loader, mode, encoded):
    image = Image.fromarray(samples(mode))
    result = loader(SPEC, LIMITS).load([encoded(image, "JPEG2000"), encoded(image, "PNG")])
    assert not result.errors
    assert torch.equal(result.pixels[0], result.pixels[1])


def test_grey_of_12_bits_is_scaled_like_16(encoded):
    levels = np.arange(4096, dtype=np.uint16).reshape(64, 64)
    body = bytearray(encoded(Image.fromarray(levels), "JPEG2000", no_jp2=True, num_resolutions=1))
    body[42] = 11  # Ssiz: 12 bits. The samples are centred on 2048 instead of 32768 then, and clipped
    image = decode(bytes(body), inspect(bytes(body), LIMITS))
    assert image.mode == "I;16"
    assert int(np.asarray(image).max()) <= 0xFFF0
    spec = PreprocessSpec(size=64, crop_pct=1.0, mean=(0, 0, 0), std=(1, 1, 1))
    found = PillowLoader(spec, LIMITS).load([bytes(body)]).pixels[0, 0] * 255
    assert np.array_equal(found.round().numpy(), np.asarray(image) >> 8)


def test_lossy_is_close(picture, encoded):
    body = encoded(picture(200, 150), "JPEG2000", irreversible=True, quality_layers=[8])
    found = np.asarray(decode(body, inspect(body, LIMITS))).astype(int)
    assert abs(found - np.asarray(picture(200, 150))).mean() < 8


@pytest.mark.parametrize("options", [{}, {"tile_size": (64, 64)}, {"no_jp2": True}])
def test_every_cut_is_refused(options, picture, encoded):
    body = encoded(picture(150, 100), "JPEG2000", **options)
    for share in (0.3, 0.6, 0.9, 0.99, 0.9999):
        assert refusal(body[: int(len(body) * share)]).code == "undecodable"


def test_a_tile_that_is_not_there_is_refused(picture, encoded):
    body = encoded(picture(128, 64), "JPEG2000", tile_size=(64, 64), no_jp2=True)
    second = body.rindex(b"\xff\x90\0\x0a\0\1")
    error = refusal(body[:second] + b"\xff\xd9")
    assert error.message == "JPEG 2000 has 1 of its 2 tiles"


def test_tile_data_cut_short_is_refused_though_its_length_is_right(picture, encoded):
    body = encoded(picture(150, 100), "JPEG2000", no_jp2=True)
    start = body.index(b"\xff\x90")
    for share in (0.3, 0.9, 0.99):
        kept = body[start + 12 : start + int((len(body) - start) * share)]
        cut = body[: start + 6] + struct.pack(">I", 12 + len(kept)) + body[start + 10 : start + 12] + kept + b"\xff\xd9"
        inspect(cut, LIMITS)
        assert PillowLoader(SPEC, LIMITS).load([cut]).errors[0].code == "undecodable"


def test_a_last_tile_part_may_go_to_the_end(picture, encoded):
    levels = np.asarray(picture(60, 40))
    body = encoded(picture(60, 40), "JPEG2000", no_jp2=True)
    length = body.index(b"\xff\x90") + 6
    open_ended = body[:length] + bytes(4) + body[length + 4 :]
    assert np.array_equal(np.asarray(decode(open_ended, inspect(open_ended, LIMITS))), levels)
    assert refusal(open_ended[:-1]).code == "undecodable"


@pytest.mark.parametrize(
    ("place", "value", "code", "said"),
    [
        ("signed", 0x87, "unsupported_format", "signed samples: expected unsigned"),
        ("depth", 9, "unsupported_format", "8, 10 bits a sample: expected 8"),
        ("step", 2, "unsupported_format", "sub-sampled components"),
        ("width", 0, "undecodable", "has no pixel"),
        ("tile", 0, "undecodable", "has no pixel or no tile"),
    ],
)
def test_size_segments_that_are_refused(place, value, code, said, picture, encoded):
    body = bytearray(encoded(picture(60, 40), "JPEG2000", no_jp2=True))
    where = {"signed": 42, "depth": 45, "step": 46, "width": 8, "tile": 24}[place]
    size = 4 if place in ("width", "tile") else 1
    body[where : where + size] = value.to_bytes(size, "big")
    if place == "signed":
        body[45] = body[48] = value
    error = refusal(bytes(body))
    assert (error.code, said in error.message) == (code, True), error.message


@pytest.mark.parametrize(
    ("marker", "said"),
    [
        (0xFF5E, "a region of interest"),
        (0xFF5F, "changes of progression"),
        (0xFF60, "packed headers"),
        (0xFF77, "transforms of part 2"),
        (0xFF52, "a coding style of a tile's own, or two"),
    ],
)
def test_rare_segments_are_refused_by_name(marker, said, picture, encoded):
    body = encoded(picture(60, 40), "JPEG2000", no_jp2=True)
    start = body.index(b"\xff\x90")
    error = refusal(body[:start] + segment(marker, bytes(12)) + body[start:])
    assert (error.code, error.message) == ("unsupported_format", f"JPEG 2000 with {said} is not accepted")


def boxed(stream: bytes, size: tuple[int, int], *more: bytes, components: int = 3, colours: bytes = b"") -> bytes:
    """A JP2 of a codestream."""
    ihdr = box(b"ihdr", struct.pack(">IIHBBBB", size[1], size[0], components, 7, 7, 0, 0))
    colr = colours or box(b"colr", b"\1\0\0" + struct.pack(">I", 16))
    head = box(b"jP  ", b"\r\n\x87\n") + box(b"ftyp", b"jp2 \0\0\0\0jp2 ")
    return head + box(b"jp2h", ihdr + colr + b"".join(more)) + box(b"jp2c", stream)


def colour_box(space: int) -> bytes:
    return box(b"colr", b"\1\0\0" + struct.pack(">I", space))


def channels(*entries: tuple[int, int, int]) -> bytes:
    return box(b"cdef", struct.pack(">H", len(entries)) + b"".join(struct.pack(">HHH", *entry) for entry in entries))


def test_boxes_are_held_against_the_codestream(picture, encoded):
    stream = encoded(picture(60, 40), "JPEG2000", no_jp2=True)
    for body in (
        boxed(stream, (60, 40)),
        boxed(stream, (60, 40), colours=box(b"colr", b"\2\0\0" + bytes(100))),
        boxed(stream, (60, 40), channels((0, 0, 1), (1, 0, 2), (2, 0, 3))),
        boxed(stream, (60, 40)) + b"more",
    ):
        image = decode(body, inspect(body, LIMITS))
        assert np.array_equal(np.asarray(image), np.asarray(picture(60, 40)))
    error = refusal(boxed(stream, (61, 40)))
    assert error.message == "JPEG 2000 says 61x40 px, 3 components but its codestream 60x40 px, 3"
    assert refusal(boxed(stream[:-2], (60, 40))).code == "undecodable"
    assert refusal(boxed(stream, (60, 40)).replace(b"jp2h", b"free")).message == "JPEG 2000 has no box jp2h"
    assert refusal(boxed(stream, (60, 40)).replace(b"jp2c", b"free")).message == "JPEG 2000 has no whole box jp2c"
    assert refusal(boxed(stream, (60, 40), box(b"ihdr", bytes(14)))).message == "JPEG 2000 has 2 boxes ihdr: expected 1"


@pytest.mark.parametrize(
    ("more", "colours", "said"),
    [
        ([box(b"pclr", bytes(20))], b"", "palette"),
        ([], colour_box(18), "colour space 18 with 3 components"),
        ([], colour_box(17), "colour space 17 with 3 components"),
        ([], box(b"colr", b"\4\0\0" + bytes(16)), "colour method 4"),
        ([channels((0, 0, 3), (1, 0, 2), (2, 0, 1))], b"", "channel 0 of type 0"),
        ([channels((0, 1, 0))], b"", "channel 0 of type 1"),
    ],
)
def test_colours_that_a_decoder_would_not_follow_are_refused(more, colours, said, picture, encoded):
    stream = encoded(picture(60, 40), "JPEG2000", no_jp2=True)
    error = refusal(boxed(stream, (60, 40), *more, colours=colours))
    assert (error.code, said in error.message) == ("unsupported_format", True), error.message


def test_cmyk_is_not_taken_for_rgb_with_opacity(encoded):
    stream = encoded(Image.fromarray(samples("RGBA")), "JPEG2000", no_jp2=True)
    assert refusal(boxed(stream, (201, 150), components=4, colours=colour_box(12))).code == "unsupported_format"
    opacity = channels((0, 0, 1), (1, 0, 2), (2, 0, 3), (3, 1, 0))
    assert inspect(boxed(stream, (201, 150), opacity, components=4), LIMITS).mode == "RGBA"
    fourth = channels((0, 0, 1), (1, 0, 2), (2, 0, 3), (3, 0, 4))
    assert refusal(boxed(stream, (201, 150), fourth, components=4)).code == "unsupported_format"


def _small() -> bytes:
    from io import BytesIO

    body = BytesIO()
    Image.fromarray(samples("RGB")[:9, :12]).save(body, "JPEG2000", no_jp2=True)
    return body.getvalue()


@given(st.data())
def test_changed_bytes_are_an_input_error_or_a_picture(data):
    body = bytearray(_small())
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(4, 140))] = data.draw(st.integers(0, 255))
    try:
        info = inspect(bytes(body), LIMITS)
    except InputError:
        return
    assert info.pixels <= 8_000_000


@given(st.binary(max_size=400), st.sampled_from([b"\xff\x4f\xff\x51", b"\0\0\0\x0cjP  \r\n\x87\n"]))
def test_random_bytes_are_an_input_error(noise, start):
    with pytest.raises(InputError):
        inspect(start + noise, LIMITS)
