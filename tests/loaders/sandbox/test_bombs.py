"""Expensive bodies cost the parent little and a child no more than its limits; pictures within them are decoded."""

import resource
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image

from milkweed.loaders import InputError, PreprocessSpec
from milkweed.loaders.sandbox.child import memory_for
from milkweed.loaders.sandbox.sandbox import CPU_SECONDS, Sandbox

from ...support.waiting import HANG_SECONDS
from ..conftest import encoded, noise
from .conftest import LIMITS, crop

MAX_PARENT_BYTES = 60 << 20
MAX_CPU_SECONDS = CPU_SECONDS + 0.5
"""This includes the start of the child and the delay with which the kernel ends it."""
CLAIMED_PIXELS = 250 * 250
"""No picture of CLAIMS is larger."""


def said_to_be(body: bytes, width: int, height: int) -> bytes:
    """Write another size into every `ispe` box of an AVIF."""
    at = body.find(b"ispe")
    while at >= 0:
        body = body[: at + 8] + struct.pack(">II", width, height) + body[at + 16 :]
        at = body.find(b"ispe", at + 4)
    return body


def with_exif(tags: int, size: int) -> bytes:
    """Make an AVIF whose EXIF block has many tags that all refer to the same `size` bytes."""
    exif = Image.Exif()
    exif[0x010E] = "a" * 1_000_000
    body = encoded(Image.new("RGB", (8, 8)), "AVIF", speed=10, exif=exif)
    at = body.rindex(b"MM\0*")
    entries = b"".join(struct.pack(">HHII", i, 7, size, 8) for i in range(tags))
    block = b"MM\0*" + struct.pack(">IH", 8, tags) + entries
    return body[:at] + block + body[at + len(block) :]


def codestream(width: int, height: int, tile: tuple[int, int]) -> bytes:
    """Make a grey JPEG 2000 of one empty packet in each tile."""
    tiles = -(-width // tile[0]) * -(-height // tile[1])
    size = struct.pack(">HIIIIIIIIH", 0, width, height, 0, 0, *tile, 0, 0, 1) + b"\7\1\1"
    coding = struct.pack(">BBHB5B", 0, 0, 1, 0, 0, 4, 4, 0, 1)
    head = b"".join(
        struct.pack(">HH", marker, len(body) + 2) + body
        for marker, body in ((0xFF51, size), (0xFF52, coding), (0xFF5C, b"\x20\x48"))
    )
    parts = (struct.pack(">HHHIBB", 0xFF90, 10, number, 15, 0, 1) + b"\xff\x93\0" for number in range(tiles))
    return b"\xff\x4f" + head + b"".join(parts) + b"\xff\xd9"


def tile(side: int, size: int = 100) -> bytes:
    """Make a deflated grey TIFF of size x size px that lies in one tile of side x side px."""
    packer, row = zlib.compressobj(9), bytes(side)
    data = b"".join([*(packer.compress(row) for _ in range(side)), packer.flush()])
    # Width, height, bits, compression, photometric, samples; the tile's width, height, offset and bytes.
    entries = {256: size, 257: size, 258: 8, 259: 8, 262: 1, 277: 1, 322: side, 323: side, 324: 134, 325: len(data)}
    body = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries.items())
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + body + bytes(4) + data


def gif_of(frame: bytes, comments: int = 0) -> bytes:
    """Make a GIF of 8 x 8 px with another size of its frame, and so many comments before it."""
    gif = encoded(Image.new("P", (8, 8)), "GIF")
    first = gif.index(b",")
    blocks = b"!\xfe" + b"\1a" * comments + b"\0" if comments else b""
    return gif[:first] + blocks + gif[first : first + 5] + frame + gif[first + 9 :]


def run_length_bmp(width: int, height: int, pairs: int) -> bytes:
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, 0, 0, 0, 256, 0)
    return struct.pack("<2sIHHI", b"BM", 0, 0, 0, 1078) + header + bytes(range(256)) * 4 + b"\xff\0" * pairs


DECODED: dict[str, Callable[[], bytes]] = {
    "tiff of one strip, turned": lambda: encoded(
        Image.new("RGBA", (5000, 4000)), "TIFF", compression="tiff_lzw", tiffinfo={0x0112: 6}, strip_size=1 << 30
    ),
    "tiff of deflated RGBA": lambda: encoded(Image.new("RGBA", (5000, 4000)), "TIFF", compression="tiff_deflate"),
    "gif": lambda: encoded(noise(5000, 4000).convert("L").point(lambda level: level // 16 * 16), "GIF"),
    "bmp": lambda: encoded(noise(5000, 4000).convert("1"), "BMP"),
    "ppm": lambda: encoded(noise(5000, 4000).convert("L"), "PPM"),
    "plain ppm": lambda: b"P3 400 400 255\n" + b"7 " * 500_000,
    "ppm of 200 levels": lambda: b"P6 590 590 200\n" + bytes(3 * 590 * 590),
    "avif": lambda: encoded(noise(4000, 3120), "AVIF", speed=10, quality=45, subsampling="4:4:4"),
    "avif with alpha": lambda: encoded(noise(4000, 3120, 4), "AVIF", speed=10, quality=20, subsampling="4:4:4"),
    "jpeg2000": lambda: encoded(noise(1460, 1400), "JPEG2000"),
    "jpeg2000 of 8 MP": lambda: encoded(Image.new("RGB", (4000, 2000)), "JPEG2000"),
}
# What these claim is far more than the picture, which may take what a picture of its size takes.
CLAIMS: dict[str, Callable[[], bytes]] = {
    "gif of a frame of 16,000 px": lambda: gif_of(struct.pack("<HH", 16_000, 16_000)),
    "jpeg2000 of a tile of 8,000 px": lambda: codestream(100, 100, (8000, 8000)),
    "avif of 6,000 px that says 64": lambda: said_to_be(
        encoded(Image.new("RGB", (6000, 6000)), "AVIF", speed=10, subsampling="4:4:4"), 64, 64
    ),
    "tiff of a tile of 16,000 px": lambda: tile(16_000),
    "tiff of a tile of 4,000 px": lambda: tile(4_000),
    "bmp of run lengths": lambda: run_length_bmp(100, 100, 2_000_000),
    "ppm of long numbers": lambda: b"P3 100 100 255\n" + b"0" * 8_000_000,
}
# Some of these are sound pictures that are merely expensive; what they cost is bounded as well.
BOMBS: dict[str, Callable[[], bytes]] = {
    "large bmp of run lengths": lambda: run_length_bmp(5000, 4000, 10_000_000),
    "large ppm of 200 levels": lambda: b"P6 2600 2600 200\n" + bytes(3 * 2600 * 2600),
    "plain ppm of comments": lambda: b"P3 # a\n8 8 255\n" + b"#\n" * 9_000_000,
    "plain ppm in one line": lambda: b"P3 4000 4000 255\n" + b"7 " * 10_000_000,
    "gif of blocks": lambda: gif_of(struct.pack("<HH", 8, 8), comments=8_000_000),
    "tiff of entries": lambda: b"II*\0\x08\0\0\0\xff\xff" + bytes(12 * 0xFFFF + 4),
    "tiff of values": lambda: b"II*\0\x08\0\0\0\1\0" + struct.pack("<HHII", 273, 4, 4_000_000, 8) + bytes(16_000_000),
    "avif exif of copies": lambda: with_exif(tags=65_000, size=200_000),
    "jpeg2000 of tiles": lambda: codestream(255, 255, (1, 1)),
    "jpeg2000 of comments": lambda: codestream(64, 64, (64, 64)).replace(
        b"\xff\x90", b"\xff\x64\0\2" * 2_000_000 + b"\xff\x90", 1
    ),
    "jpeg2000 of boxes": lambda: b"\0\0\0\x0cjP  \r\n\x87\n" + b"\0\0\0\x08free" * 1_000_000,
}
CASES = {**CLAIMS, **BOMBS, **DECODED}


class Cost(NamedTuple):
    """What a body cost; `child_bytes` is None where its child is gone."""

    outcome: str
    cpu_seconds: float
    parent_bytes: int
    child_bytes: int | None


def status_bytes(process: int | str, key: str) -> int:
    words = Path(f"/proc/{process}/status").read_text().split()
    return int(words[words.index(f"{key}:") + 1]) << 10


def cost(body: bytes, spec: PreprocessSpec) -> Cost:
    """Decode a body in a new sandbox."""
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    memory, spent = status_bytes("self", "VmRSS"), resource.getrusage(resource.RUSAGE_CHILDREN)
    sandbox, outcome = Sandbox(LIMITS, answer_seconds=HANG_SECONDS), "ok"
    child = sandbox._child()
    sandbox.idle.append(child)
    before = status_bytes(child.process.pid, "VmHWM")
    try:
        crop(sandbox, body, spec)
    except InputError as error:
        outcome = error.code
    grown = status_bytes(child.process.pid, "VmHWM") - before if list(sandbox.idle) == [child] else None
    sandbox.close()
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_seconds = now.ru_utime + now.ru_stime - spent.ru_utime - spent.ru_stime
    return Cost(outcome, cpu_seconds, status_bytes("self", "VmHWM") - memory, grown)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.slow_beyond(2)
def test_no_body_costs_more_than_a_child_may_and_sound_ones_are_decoded(name: str) -> None:
    body = CASES[name]()
    spent = cost(body, PreprocessSpec())
    print(f"{name}: {len(body)} bytes, {spent}")
    assert spent.outcome in (("ok",) if name in DECODED else ("ok", "undecodable", "too_many_pixels"))
    assert spent.cpu_seconds < MAX_CPU_SECONDS
    assert spent.parent_bytes < MAX_PARENT_BYTES
    if name in CLAIMS:
        assert spent.child_bytes is not None, "it was killed"
        assert spent.child_bytes < memory_for("JPEG2000", len(body), CLAIMED_PIXELS)
