"""A part of a JPEG has the bits of the whole picture, and says nothing of what is not sound."""

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from numpy.typing import NDArray

from milkweed.kernels.cpu import build as building
from milkweed.kernels.cpu.instruction_sets import CpuLibraryError
from milkweed.kernels.cpu.library import jpeg_entry, resize_entry
from milkweed.kernels.images import jpeg
from milkweed.kernels.images.jpeg import decode_part, part_refusal
from milkweed.kernels.images.resize import PicturePart
from milkweed.kernels.images.scratch import MAX_KEPT_BYTES, Scratch

SAMPLINGS = ("444", "422", "420", "440", "411", "gray")


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    building.build()
    if refusal := part_refusal():
        pytest.skip(refusal)


def picture(width: int, height: int, sampling: str = "420") -> bytes:
    y, x = np.mgrid[0:height, 0:width]
    levels = np.stack([128 + 90 * np.sin(x / a) * np.cos(y / 17) for a in (5, 11, 29)], -1).astype(np.uint8)
    if sampling == "gray":
        return simplejpeg.encode_jpeg(levels[..., :1].copy(), colorspace="GRAY", colorsubsampling="Gray")
    return simplejpeg.encode_jpeg(levels, colorsubsampling=sampling)


def boxes(width: int, height: int) -> list[PicturePart]:
    random = np.random.default_rng(width)
    drawn = [PicturePart.whole(width, height), PicturePart(width, height, width - 1, height - 1, width, height)]
    for _ in range(12):
        left, top = int(random.integers(width)), int(random.integers(height))
        right, bottom = int(random.integers(left, width)) + 1, int(random.integers(top, height)) + 1
        drawn.append(PicturePart(width, height, left, top, right, bottom))
    return drawn


@pytest.mark.parametrize("scale", [1, 2, 4, 8])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("size", [(500, 375), (131, 97), (1, 40), (40, 1), (1, 1), (17, 2), (2, 600)])
def test_a_part_has_the_bits_of_the_whole_picture(size: tuple[int, int], sampling: str, scale: int) -> None:
    body = picture(*size, sampling)
    width, height = (-(-length // scale) for length in size)
    whole: NDArray[np.uint8] = simplejpeg.decode_jpeg(body, min_width=width, min_height=height)
    if whole.shape[:2] != (height, width):
        pytest.skip("simplejpeg makes it smaller")
    for part in boxes(width, height):
        decoded = decode_part(body, part, scale)
        assert decoded is not None
        levels, made = decoded
        assert levels.shape == made.shape
        assert made.left <= part.left
        assert made.right >= part.right
        inside = levels[:, part.left - made.left : part.right - made.left]
        assert np.array_equal(inside, whole[part.top : part.bottom, part.left : part.right]), part


def test_damage_before_inside_and_behind_the_part_and_a_wrong_size_are_noticed() -> None:
    body, part = picture(500, 375), PicturePart(500, 375, 200, 180, 210, 190)
    assert decode_part(body, part) is not None
    for at in np.linspace(700, len(body) - 70, 9).astype(int):
        assert decode_part(body[:at] + b"\xff\xd9" * 20 + body[at + 40 :], part) is None
    for short in (2, 40, len(body) // 8, len(body)):
        assert decode_part(body[: len(body) - short], part) is None
    assert decode_part(body, part._replace(width=501)) is None
    assert decode_part(body, part._replace(height=374)) is None
    assert decode_part(body, PicturePart(500, 375, 0, 0, 500, 375), 2) is None
    assert decode_part(body, part) is not None


def test_a_picture_of_65500_rows() -> None:
    body = picture(9, 65_500)
    decoded = decode_part(body, PicturePart(9, 65_500, 3, 32_000, 5, 32_009))
    assert decoded is not None
    levels, made = decoded
    assert np.array_equal(levels, simplejpeg.decode_jpeg(body)[32_000:32_009, made.left : made.right])


def test_a_buffer_that_is_too_small_is_not_written_past() -> None:
    body, part = picture(64, 64), (ctypes.c_int32 * 6)(*PicturePart.whole(64, 64))
    out = np.zeros(64 * 64 * 3, np.uint8)
    assert not jpeg.jpeg_entry()(body, len(body), 1, part, out.ctypes.data, out.size - 1)
    assert not out.any()


def test_a_library_without_libjpeg_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise CpuLibraryError("the CPU kernels were built without libjpeg-turbo")

    monkeypatch.setattr(jpeg, "jpeg_entry", missing)
    assert part_refusal.__wrapped__() == "the CPU kernels were built without libjpeg-turbo"


@pytest.mark.slow
def test_without_libjpegs_headers_the_other_kernels_are_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    library = tmp_path / "kernels.so"
    monkeypatch.setattr(building, "IMAGES", tmp_path)  # where nothing is to compile
    monkeypatch.setattr(building, "SETS", {isa: how for isa, how in building.SETS.items() if isa.name == "plain"})
    assert building.build(library)
    assert "libjpeg-dev): JPEGs are decoded whole" in capsys.readouterr().out
    assert resize_entry("plain", library) is not None
    with pytest.raises(CpuLibraryError, match="were built without libjpeg-turbo"):
        jpeg_entry(library)


def test_scratch_is_used_again_but_not_kept_beyond_its_limit() -> None:
    scratch = Scratch()
    small, again, large = scratch.bytes(100), scratch.bytes(50), scratch.bytes(MAX_KEPT_BYTES + 1)
    assert small[:50].ctypes.data == again.ctypes.data
    assert (len(large), len(scratch.bytes(100))) == (MAX_KEPT_BYTES + 1, 100)
    assert scratch.bytes(100).ctypes.data == small.ctypes.data
