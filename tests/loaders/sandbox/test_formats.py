"""The sandbox makes the same bits as the reference, accepts every usual kind of each format, and refuses the others."""

import struct
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from milkweed.loaders import ImageInfo, InputError, PillowLoader, PreprocessSpec, validate
from milkweed.loaders.headers.info import SANDBOXED
from milkweed.loaders.sandbox.sandbox import Sandbox

from ...support.waiting import HANG_SECONDS
from ..conftest import encoded, picture
from .conftest import LIMITS

SPEC = PreprocessSpec(size=64)
SIZES = ((147, 90), (90, 300), (31, 20), (1, 1))
MODES: list[tuple[str, str]] = [
    *(("TIFF", mode) for mode in ("1", "L", "P", "LA", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "I;16", "I;16B")),
    *(("BMP", mode) for mode in ("1", "L", "P", "RGB", "RGBA")),
    *(("PPM", mode) for mode in ("1", "L", "RGB", "I;16")),
    *(("GIF", mode) for mode in ("1", "L", "P", "RGB")),
    *(("AVIF", mode) for mode in ("L", "RGB", "RGBA")),
    *(("JPEG2000", mode) for mode in ("L", "LA", "RGB", "RGBA", "I;16")),
]
KINDS: list[tuple[str, str, dict[str, object]]] = [
    *(("TIFF", "RGB", {"compression": f}) for f in ("tiff_lzw", "tiff_deflate", "packbits", "jpeg", "zstd", "lzma")),
    ("TIFF", "RGB", {"compression": "tiff_lzw", "strip_size": 1 << 20}),
    *(("TIFF", "1", {"compression": f}) for f in ("group3", "group4", "tiff_ccitt")),
    *(("AVIF", "RGBA", {"speed": 10, "subsampling": f}) for f in ("4:4:4", "4:2:2", "4:2:0", "4:0:0")),
    ("AVIF", "RGB", {"tile_rows": 1, "tile_cols": 1}),
    ("AVIF", "RGB", {"range": "limited", "quality": 1}),
    ("AVIF", "RGB", {"xmp": b"<x/>", "icc_profile": b"\0" * 200}),
    ("JPEG2000", "RGB", {"no_jp2": True}),
    ("JPEG2000", "RGB", {"num_resolutions": 1, "plt": True, "mct": 0}),
    ("JPEG2000", "RGB", {"tile_size": (64, 64), "tile_offset": (3, 2), "offset": (10, 20)}),
    ("JPEG2000", "RGB", {"quality_layers": [40, 10, 1], "comment": "a" * 3000}),
    ("JPEG2000", "RGB", {"precinct_size": (64, 64), "codeblock_size": (16, 32), "progression": "CPRL"}),
]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox(LIMITS, answer_seconds=HANG_SECONDS)
    yield made
    made.close()


def read(sandbox: Sandbox, body: bytes, spec: PreprocessSpec = SPEC) -> tuple[np.ndarray, ImageInfo]:
    return sandbox.read(body, validate(body, LIMITS), spec)


def in_mode(image: Image.Image, mode: str) -> Image.Image:
    """Convert the image to a mode; if its samples have 16 bits, the lower 8 are not 0."""
    if mode == "RGBA":
        image.putalpha(image.convert("L"))  # libavif writes no alpha where all is opaque
    if not mode.startswith("I;16"):
        return image.convert(mode)
    wide = (np.asarray(image.convert("L")).astype(np.uint16) << 8) + 77
    return Image.frombytes(mode, image.size, wide.astype(">u2" if mode.endswith("B") else "<u2").tobytes())


def reference(body: bytes, spec: PreprocessSpec) -> np.ndarray:
    """Decode the body with Pillow in this process, then crop it as PNG with the reference loader, as timm would."""
    with Image.open(BytesIO(body)) as image:
        if spec.orientation == "apply":
            image = ImageOps.exif_transpose(image)
        if image.mode.startswith("I"):
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        image.info.pop("transparency", None)
        out = BytesIO()
        image.convert("RGB").save(out, "PNG")
    plain = PreprocessSpec(spec.size, spec.crop_pct, spec.interpolation, mean=(0, 0, 0), std=(1, 1, 1))
    pixels = PillowLoader(plain).load([out.getvalue()]).pixels[0]
    return (pixels * 255).round().astype("u1").transpose(1, 2, 0)


def check(sandbox: Sandbox, body: bytes, spec: PreprocessSpec = SPEC) -> ImageInfo:
    """Expect the reference's bits; returns the header."""
    levels, info = read(sandbox, body, spec)
    assert np.array_equal(levels, reference(body, spec))
    return info


@pytest.mark.parametrize(("format", "mode"), MODES)
def test_every_mode_is_the_references(format: str, mode: str, sandbox: Sandbox) -> None:
    for size in SIZES:
        info = check(sandbox, encoded(in_mode(picture(*size), mode), format))
        assert (info.format, info.width, info.height, info.orientation) == (format, *size, 1)
        assert (info.frames, info.cost) == (1, SANDBOXED[info.format])


@pytest.mark.parametrize(("format", "mode", "options"), KINDS)
def test_every_usual_kind_is_the_references(format: str, mode: str, options: dict, sandbox: Sandbox) -> None:
    check(sandbox, encoded(in_mode(picture(201, 150), mode), format, **options))


@pytest.mark.slow_beyond(4)
@pytest.mark.parametrize("spec", [{"crop_pct": 1.4}, {"interpolation": "bilinear"}, {"size": 224}])
@pytest.mark.parametrize("size", [(640, 480), (300, 900), (2000, 900)])
def test_every_geometry_is_the_references(spec: dict, size: tuple[int, int], sandbox: Sandbox) -> None:
    check(sandbox, encoded(picture(*size), "BMP"), PreprocessSpec(**{"size": 64, **spec}))


@pytest.mark.parametrize("format", ["TIFF", "AVIF"])
@pytest.mark.parametrize("value", range(1, 9))
def test_every_orientation_is_the_references(format: str, value: int, sandbox: Sandbox) -> None:
    for size in SIZES[:2]:
        exif = Image.Exif()
        exif[0x0112] = value
        options = {"tiffinfo": {0x0112: value}} if format == "TIFF" else {"exif": exif}
        body = encoded(picture(*size), format, **options)
        info = check(sandbox, body)
        assert info.upright_size(True) == (size if value < 5 else size[::-1])
        assert info.orientation == (1 if format == "TIFF" else value)  # Pillow turns TIFF itself
    if format == "AVIF":
        check(sandbox, body, PreprocessSpec(size=64, orientation="ignore"))


def test_16_bit_grey_is_scaled_not_saturated(sandbox: Sandbox) -> None:
    ramp = np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)
    spec = PreprocessSpec(size=64, crop_pct=1.0)
    for body in (
        encoded(Image.fromarray(ramp), "TIFF"),
        encoded(Image.fromarray(ramp), "JPEG2000"),
        b"P5 64 64 65535\n" + ramp.astype(">u2").tobytes(),
    ):
        assert np.array_equal(read(sandbox, body, spec)[0], np.repeat(ramp[..., None] >> 8, 3, 2))


@pytest.mark.parametrize("mode", ["F", "I", "LAB"])
def test_samples_without_a_range_are_unsupported(mode: str, sandbox: Sandbox) -> None:
    with pytest.raises(InputError, match=f"TIFF of mode {mode} is not accepted") as caught:
        read(sandbox, encoded(Image.new(mode, (8, 8)), "TIFF"))
    assert caught.value.code == "unsupported_format"


@pytest.mark.parametrize(
    ("body", "levels"),
    [
        (b"P3 # a comment\n2 2 255\n" + b"7 8 9 " * 4, [[[7, 8, 9]] * 2] * 2),
        (b"P1 2 2\n01 10", [[[255] * 3, [0] * 3], [[0] * 3, [255] * 3]]),
        (b"P6 2 2 51\n" + bytes((1, 2, 3)) * 4, [[[5, 10, 15]] * 2] * 2),
        (b"P5 2 2 511\n" + b"\0\xff\1\xff" * 2, [[[127] * 3, [255] * 3]] * 2),
    ],
)
def test_kinds_of_ppm(body: bytes, levels: list, sandbox: Sandbox) -> None:
    found, _ = read(sandbox, body, PreprocessSpec(size=2, crop_pct=1.0))
    assert found.tolist() == levels


def test_first_frames_of_several(sandbox: Sandbox) -> None:
    first, *more = (picture(80, 60, seed) for seed in range(3))
    for format in ("GIF", "TIFF", "AVIF"):
        body = encoded(first, format, save_all=True, append_images=more)
        # In the others, frames cannot be counted without reading the whole file.
        assert check(sandbox, body).frames == (3 if format == "AVIF" else 1)


@pytest.mark.parametrize("format", SANDBOXED)
def test_every_cut_is_refused_or_the_whole_picture(format: str, sandbox: Sandbox) -> None:
    body = encoded(picture(90, 70), format)
    whole, _ = read(sandbox, body)
    for share in (0.05, 0.3, 0.6, 0.9, 0.99):
        with suppress(InputError):
            assert np.array_equal(read(sandbox, body[: int(len(body) * share)])[0], whole), share
    assert not sandbox.deaths


def test_jpeg2000_with_tile_data_cut_short_is_refused(sandbox: Sandbox) -> None:
    body = encoded(picture(150, 100), "JPEG2000", no_jp2=True)
    start = body.index(b"\xff\x90")
    for share in (0.3, 0.9, 0.99):
        kept = body[start + 12 : start + int((len(body) - start) * share)]
        cut = body[: start + 6] + struct.pack(">I", 12 + len(kept)) + body[start + 10 : start + 12] + kept + b"\xff\xd9"
        with pytest.raises(InputError, match="cannot be decoded"):
            read(sandbox, cut)


CHANGED = [("AVIF", {"speed": 10}), ("TIFF", {"compression": "tiff_lzw"}), ("JPEG2000", {}), ("GIF", {}), ("BMP", {})]


@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from(CHANGED),
    changes=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=4)), min_size=1, max_size=4
    ),
)
def test_changed_bytes_are_an_input_error_or_a_picture(
    sandbox: Sandbox, kind: tuple[str, dict], changes: list[tuple[float, bytes]]
) -> None:
    format, options = kind
    body = bytearray(encoded(picture(24, 16), format, **options))
    for where, what in changes:
        at = int(where * min(len(body), 2000))
        body[at : at + len(what)] = what
    with suppress(InputError):
        assert read(sandbox, bytes(body))[0].shape == (64, 64, 3)
