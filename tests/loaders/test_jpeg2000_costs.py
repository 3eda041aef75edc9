"""What a JPEG 2000 may cost: claims of bit planes, tiles, code-blocks, precincts and packets that are not there."""

import struct
import time
from collections.abc import Iterator

import numpy as np
import pytest

from milkweed.loaders import FORMATS, CpuLoader, InputError, Limits, PreprocessSpec, inspect
from milkweed.loaders.info import OPT_IN_FORMATS

LIMITS = Limits(formats=FORMATS + OPT_IN_FORMATS)


class Bits:
    """The bits of a packet header: a byte after 0xff has seven (ISO/IEC 15444-1, B.10.1)."""

    def __init__(self) -> None:
        self.bytes = bytearray()
        self.value, self.count, self.room = 0, 0, 8

    def put(self, value: int, count: int) -> None:
        for place in range(count - 1, -1, -1):
            self.value = self.value << 1 | (value >> place & 1)
            self.count += 1
            if self.count == self.room:
                self.bytes.append(self.value)
                self.room = 7 if self.value == 0xFF else 8
                self.value = self.count = 0

    def done(self) -> bytes:
        while self.count:
            self.put(0, 1)
        return bytes(self.bytes)


def claiming(width: int, height: int, components: int, planes: int) -> bytes:
    """A picture whose every block of 64x64 samples claims all passes of `planes` bit planes and has one byte."""
    across, down = -(-width // 64), -(-height // 64)
    header = Bits()
    header.put(1, 1)
    for nodes in _new_nodes(across, down):
        header.put((1 << 2 * nodes) - 1, 2 * nodes)  # included, and without empty planes
        passes = 3 * planes - 2
        header.put(0b1111 << 5 | passes - 6, 9) if passes < 37 else header.put(0b111111111 << 7 | passes - 37, 16)
        header.put(0, 1)
        header.put(1, 3 + passes.bit_length() - 1)
    packet = header.done() + b"U" * across * down
    return declaring(width, height, components, planes=planes, blocks=(6, 6), data=packet * components)


def _new_nodes(across: int, down: int) -> Iterator[int]:
    """How many nodes of a tag tree each leaf is the first to reach (B.10.2)."""
    seen: set[tuple[int, int, int]] = set()
    depth = max(across - 1, down - 1).bit_length()
    for y in range(down):
        for x in range(across):
            path = {(level, x >> level, y >> level) for level in range(depth + 1)}
            yield len(path - seen)
            seen |= path


def declaring(
    width: int,
    height: int,
    components: int = 1,
    *,
    tile: tuple[int, int] | None = None,
    layers: int = 1,
    levels: int = 0,
    blocks: tuple[int, int] = (6, 6),
    precincts: tuple[int, int] | None = None,
    planes: int = 9,
    data: bytes = b"\0",
) -> bytes:
    """A codestream of these parameters whose every tile has the same data; zeros are empty packets."""
    tile = tile or (width, height)
    tiles = -(-width // tile[0]) * -(-height // tile[1])
    size = struct.pack(">HIIIIIIIIH", 0, width, height, 0, 0, *tile, 0, 0, components) + b"\7\1\1" * components
    coding = struct.pack(">BBHB", precincts is not None, 0, layers, components >= 3)
    coding += bytes([levels, blocks[0] - 2, blocks[1] - 2, 0, 1])
    coding += bytes([precincts[0] | precincts[1] << 4] * (levels + 1)) if precincts else b""
    quantisation = bytes([1 << 5]) + bytes([planes << 3]) * (3 * levels + 1)
    head = b"".join(
        struct.pack(">HH", marker, len(body) + 2) + body
        for marker, body in ((0xFF51, size), (0xFF52, coding), (0xFF5C, quantisation))
    )
    parts = (
        struct.pack(">HHHIBB", 0xFF90, 10, number, 14 + len(data), 0, 1) + b"\xff\x93" + data for number in range(tiles)
    )
    return b"\xff\x4f" + head + b"".join(parts) + b"\xff\xd9"


def refusal(body: bytes) -> InputError:
    with pytest.raises(InputError) as caught:
        inspect(body, LIMITS)
    return caught.value


def test_the_bodies_of_this_file_are_sound():
    loader = CpuLoader(PreprocessSpec(size=32), LIMITS)
    bodies = [
        claiming(200, 100, 3, 10),
        claiming(100, 200, 1, 30),
        declaring(100, 100, tile=(32, 32), levels=2, layers=3, data=bytes(9)),
    ]
    result = loader.load(bodies)
    loader.close()
    assert not result.errors
    assert len(np.unique(result.pixels[0].numpy())) > 100  # the claimed passes are made, on bytes that are not there


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        (claiming(4000, 3000, 3, 30), "too_many_pixels", "1116000000 samples times bit planes: limit 72000000"),
        (claiming(1500, 1500, 3, 10), "too_many_pixels", "74250000 samples times bit planes: limit 72000000"),
        (declaring(4000, 3000, planes=1), "too_many_pixels", "limit 8 megapixels for JPEG2000"),
        (declaring(4000, 3000, planes=4, blocks=(2, 2)), "undecodable", "code-blocks: limit 131072"),
        (declaring(255, 255, tile=(1, 1)), "undecodable", "65025 tiles: limit 1024"),
        (declaring(400, 400, precincts=(0, 0)), "undecodable", "code-blocks: limit 131072"),
        (declaring(3000, 1000, precincts=(4, 0)), "undecodable", "code-blocks: limit 131072"),
        (declaring(64, 64, 4, layers=65535), "undecodable", "packets: limit 524288"),
        (declaring(64, 64, layers=0), "undecodable", "does not say how it is coded"),
        (declaring(64, 64, levels=33), "undecodable", "coding style is broken"),
        (declaring(64, 64, blocks=(10, 10)), "undecodable", "coding style is broken"),
        (declaring(64, 64, levels=1, precincts=(0, 1)), "undecodable", "precincts of half a sample"),
    ],
)
def test_claims_are_bounded(body, code, said):
    error = refusal(body)
    assert (error.code, said in error.message) == (code, True), error.message


@pytest.mark.parametrize(
    "body",
    [
        claiming(1024, 480, 3, 10),
        claiming(512, 384, 3, 28),
        declaring(950, 2000, blocks=(2, 2)),
        declaring(250, 250, precincts=(0, 0), data=bytes(62_500)),
        declaring(64, 64, layers=65535, data=bytes(65_535)),
        declaring(1024, 1024, 4, tile=(32, 32), data=bytes(4)),
        declaring(1800, 1900, 4, levels=32, planes=4, data=bytes(132)),
    ],
)
def test_what_is_accepted_is_cheap(body):
    loader = CpuLoader(PreprocessSpec(), LIMITS)
    seconds = []
    for _ in range(2):
        result = loader.load([body])
        seconds.append(sum(result.cpu_seconds.values()))
    loader.close()
    assert not result.errors
    assert min(seconds) < 1.0


def test_photographs_of_common_sizes_are_accepted(picture, encoded):
    small = encoded(picture(64, 36), "JPEG2000", no_jp2=True)
    assert inspect(resized(small, 1920, 1080), LIMITS).pixels == 1920 * 1080
    assert inspect(resized(encoded(picture(64, 36).convert("L"), "JPEG2000", no_jp2=True), 2400, 2400), LIMITS)
    assert "limit 72000000" in refusal(resized(small, 2000, 1200)).message


def resized(body: bytes, width: int, height: int) -> bytes:
    """The same codestream, saying that it is of another size."""
    lying = bytearray(body)
    for place, side in ((8, width), (12, height), (24, width), (28, height)):
        lying[place : place + 4] = side.to_bytes(4, "big")
    return bytes(lying)


def test_hostile_headers_cost_little():
    one = declaring(64, 64, data=bytes(1))
    start = one.index(b"\xff\x90")
    part = one[start:-2]
    for body in (
        one[:start] + b"\xff\x64\0\2" * 2_000_000 + one[start:],
        one[:start] + part * 500_000 + b"\xff\xd9",
        one[:start] + part[:-3] + b"\xff\x64\0\2" * 2_000_000 + part[-3:] + b"\xff\xd9",
        b"\0\0\0\x0cjP  \r\n\x87\n" + b"\0\0\0\x08free" * 1_000_000,
    ):
        began = time.thread_time()
        assert refusal(body).code in ("undecodable", "too_large")
        assert time.thread_time() - began < 0.3
