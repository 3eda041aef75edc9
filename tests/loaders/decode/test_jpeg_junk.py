"""Bytes that lose no pixel are no error, as webcams leave them; what loses pixels is one, with or without them."""

import re
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image

from milkweed.loaders import CpuLoader, PillowLoader, PreprocessSpec, create_loader, validate
from milkweed.loaders.decode import turbo
from milkweed.loaders.decode.cpu import rgb_pixels
from milkweed.loaders.decode.jpeg_junk import MAX_JUNK_BYTES
from milkweed.loaders.decode.turbo import sound_jpeg

SPEC = PreprocessSpec(size=64, crop_pct=1.0)
JUNK: dict[str, Callable[[int], bytes]] = {
    "zeros": bytes,
    "padding": lambda size: b"\xff" * size,
    "garbage": lambda size: bytes((37 * place + 11) % 255 for place in range(size)),
}


@pytest.fixture
def clean(picture: Callable[..., Image.Image], encoded: Callable[..., bytes]) -> bytes:
    return encoded(picture(160, 120), "JPEG", quality=90, restart_marker_blocks=4)


def restarts(body: bytes) -> list[int]:
    start = body.index(b"\xff\xda")
    return [marker.start() for marker in re.finditer(rb"\xff[\xd0-\xd7]", body) if marker.start() > start]


def with_junk(body: bytes, places: list[int], junk: bytes) -> bytes:
    for place in sorted(places, reverse=True):
        body = body[:place] + junk + body[place:]
    return body


def same(body: bytes, clean: bytes) -> bool:
    """Whether both loaders and the readers of data sets see in `body` what Pillow sees in the clean file."""
    info, expected = validate(body), np.asarray(Image.open(BytesIO(clean)).convert("RGB"))
    loaders = CpuLoader(SPEC), PillowLoader(SPEC)
    pairs = [loader.load([body, clean], [info, validate(clean)]) for loader in loaders]
    return np.array_equal(rgb_pixels(body, info), expected) and all(
        pair.ok == [0, 1] and np.array_equal(pair.pixels[0], pair.pixels[1]) for pair in pairs
    )


@pytest.mark.parametrize("kind", JUNK)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 8, 9, 20])
def test_junk_before_markers_loses_nothing(kind: str, size: int, clean: bytes) -> None:
    marks, junk = restarts(clean), JUNK[kind](size)
    assert len(marks) == 19
    for places in ([marks[9]], marks, [len(clean) - 2], [marks[0], marks[-1], len(clean) - 2], [20]):
        assert same(with_junk(clean, places, junk), clean), places


@pytest.mark.parametrize(
    "options", [{"subsampling": 0}, {"subsampling": 1}, {"restart_marker_rows": 1}, {"grey": True}]
)
def test_in_every_sampling(
    options: dict[str, Any], picture: Callable[..., Image.Image], encoded: Callable[..., bytes]
) -> None:
    options = {"restart_marker_blocks": 7, **options}
    image = picture(163, 121).convert("L" if options.pop("grey", False) else "RGB")
    clean = encoded(image, "JPEG", quality=90, **options)
    for junk in (b"\0", b"\x11\x22\x33"):
        assert same(with_junk(clean, [*restarts(clean), len(clean) - 2], junk), clean)


def test_other_warnings_that_lose_nothing(clean: bytes, picture: Any, encoded: Any) -> None:
    plain = encoded(picture(160, 120), "JPEG", quality=90)
    scan = plain.index(b"\xff\xda")
    slow = encoded(picture(160, 120), "JPEG", progressive=True)
    assert same(plain[:11] + b"\x09" + plain[12:], plain)  # an unknown revision of JFIF
    assert same(plain[: scan + 11] + bytes(3) + plain[scan + 14 :], plain)  # what a sequential scan leaves out
    assert same(with_junk(plain, [len(plain) - 2], b"\x31\x07\x15\x99\x20\x77"), plain)  # no restart markers
    assert same(with_junk(slow, [len(slow) - 2], bytes(9)), slow)
    assert same(clean + b"\xff\xd9" * 3, clean)
    assert same(with_junk(clean, [2], b"\xff\xe7\0\x0agarbage!"), clean)
    tables = plain.index(b"\xff\xc4")  # MJPEG leaves out the usual tables of a JPEG
    usual = encoded(picture(160, 120), "JPEG", quality=90, optimize=False)
    assert same(plain[:tables] + plain[scan:], usual)


def lost(clean: bytes) -> dict[str, bytes]:
    marks = restarts(clean)
    at, later = marks[9], marks[15]
    return {
        "cut": clean[: at + 40] + b"\xff\xd9",
        "cut without an end": clean[: at + 40],
        "end missing": clean[:-2],
        "bytes missing": clean[: at - 6] + clean[at:],
        "bytes missing after junk": clean[:at] + bytes(5) + clean[at : later - 6] + clean[later:],
        "bytes missing before junk": clean[: at - 6] + clean[at:later] + bytes(5) + clean[later:],
        "marker missing": clean[:at] + clean[at + 2 :],
        "interval missing": clean[:at] + clean[marks[10] :],
        "interval doubled": clean[: marks[10]] + clean[at:],
        "too much junk": with_junk(clean, [at], JUNK["garbage"](MAX_JUNK_BYTES + 10)),
    }


@pytest.mark.parametrize("name", lost(b"\xff\xda" + b"\xff\xd0" * 20))
@pytest.mark.parametrize("loader", ["cpu", "pillow"])
def test_what_loses_pixels_stays_an_error(name: str, loader: str, clean: bytes) -> None:
    body = lost(clean)[name]
    result = create_loader(loader, SPEC).load([clean, body])
    assert result.ok == [0]
    assert result.errors[1].code == "undecodable"
    assert "truncated or corrupt" in result.errors[1].message


def test_data_that_ends_in_no_ones_is_damaged(clean: bytes) -> None:
    """What is left behind damaged data is told from junk: sound data is filled up with ones."""
    places = [at for at in restarts(clean) if clean[at - 1] & 3 == 3 and clean[at - 2] != 0xFF]
    assert len(places) >= 5
    refused = 0
    for at in places:
        junk = clean[:at] + JUNK["garbage"](9) + clean[at:]
        assert same(junk, clean)
        damaged = junk[: at - 1] + bytes([junk[at - 1] & ~1]) + junk[at:]
        refused += len(create_loader("cpu", SPEC).load([damaged]).errors)
    assert refused == len(places)


def test_a_sound_jpeg_is_decoded_once(clean: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turbo, "without_junk", lambda data, info: pytest.fail("it has no junk"))
    assert sound_jpeg(clean, validate(clean)) is clean
    assert not CpuLoader(SPEC).load([clean]).errors


def test_a_gpu_gets_the_bytes_without_junk(clean: bytes) -> None:
    body = with_junk(clean, restarts(clean), b"\x11\x22\x33")
    sound = sound_jpeg(body, validate(body))
    assert sound[sound.index(b"\xff\xda") :] == clean[clean.index(b"\xff\xda") :]
