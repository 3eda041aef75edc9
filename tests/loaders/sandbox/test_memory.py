"""A picture takes the memory that its own pixels need, whatever its tiles, strips and tables claim."""

import struct
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image

from milkweed.loaders import FORMATS, InputError, Limits
from milkweed.loaders.headers.info import OPT_IN_FORMATS
from milkweed.loaders.sandbox.child import memory_for
from milkweed.loaders.sandbox.process import Child
from milkweed.loaders.sandbox.sandbox import MEMORY_BYTES, Sandbox

from ...support.waiting import HANG_SECONDS
from ..conftest import encoded as saved
from .asking import crop
from .test_bombs import declaring, said_to_be

LIMITS = Limits(formats=FORMATS + OPT_IN_FORMATS)
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC, _OFFSETS, _SAMPLES = 256, 257, 258, 259, 262, 273, 277
_ROWS, _COUNTS, _TILE_WIDTH, _TILE_HEIGHT, _TILE_OFFSETS, _TILE_COUNTS = 278, 279, 322, 323, 324, 325


def tiff(size: tuple[int, int], data: bytes, **tags: int) -> bytes:
    """Make a deflated grey TIFF of one strip or tile; `data` is compressed."""
    entries = {_WIDTH: size[0], _HEIGHT: size[1], _BITS: 8, _COMPRESSION: 8, _PHOTOMETRIC: 1, _SAMPLES: 1}
    entries |= {int(name[1:]): value for name, value in tags.items()}
    start = 8 + 2 + 12 * (len(entries) + 2) + 4
    tiled = _TILE_WIDTH in entries
    entries |= {_TILE_OFFSETS if tiled else _OFFSETS: start, _TILE_COUNTS if tiled else _COUNTS: len(data)}
    body = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(entries.items()))
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + body + bytes(4) + data


def tile(side: int, size: int = 100) -> bytes:
    """Make a TIFF of size x size px that lies in one tile of side x side px."""
    packer, row = zlib.compressobj(9), bytes(side)
    data = b"".join([*(packer.compress(row) for _ in range(side)), packer.flush()])
    return tiff((size, size), data, _322=side, _323=side)


def screen(side: int) -> bytes:
    """Make a GIF of 8 x 8 px whose frame is said to be side x side px."""
    gif = saved(Image.new("P", (8, 8)), "GIF")
    at = gif.index(b",") + 5
    return gif[:at] + struct.pack("<HH", side, side) + gif[at + 4 :]


def run_lengths(side: int) -> bytes:
    header = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, 0, 0, 0, 256, 0)
    return struct.pack("<2sIHHI", b"BM", 0, 0, 0, 1078) + header + bytes(1024) + b"\xff\0" * 2_000_000


BOMBS: dict[str, Callable[[], bytes]] = {
    "tiff of a tile of 16,000 px": lambda: tile(16_000),
    "tiff of a tile of 6,000 px": lambda: tile(6_000),
    "tiff of a tile of 4,000 px": lambda: tile(4_000),
    "tiff of a wide tile": lambda: tiff((100, 100), zlib.compress(bytes(64 << 20), 9), _322=4 << 20, _323=16),
    "tiff of a strip of 4 billion rows": lambda: tiff((100, 100), zlib.compress(bytes(64 << 20), 9), _278=0xFFFFFFFF),
    "tiff of many samples": lambda: tiff((100, 100), zlib.compress(bytes(64 << 20), 9), _277=65_535),
    "avif of 6,000 px that says 64": lambda: said_to_be(saved(Image.new("RGB", (6000, 6000)), "AVIF"), 64, 64),
    "jpeg2000 of a tile of 8,000 px": lambda: declaring(100, 100, 3, tile=(8000, 8000)),
    "jpeg2000 of small precincts": lambda: declaring(250, 250, precincts=(0, 0), data=bytes(62_500)),
    "gif of a frame of 16,000 px": lambda: screen(16_000),
    "bmp of run lengths": lambda: run_lengths(100),
    "ppm of long numbers": lambda: b"P3 100 100 255\n" + b"0" * 8_000_000,
}


def peak_bytes(child: Child, key: str = "VmHWM:") -> int:
    words = Path(f"/proc/{child.process.pid}/status").read_text().split()
    return int(words[words.index(key) + 1]) << 10


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.slow_beyond(3)
def test_no_claim_takes_more_than_a_picture_of_that_size_may(name: str, sandbox: Sandbox) -> None:
    body = BOMBS[name]()
    sandbox = Sandbox(LIMITS, answer_seconds=HANG_SECONDS)
    child = sandbox._child()
    before = peak_bytes(child)
    sandbox.idle.append(child)
    said = "ok"
    try:
        crop(sandbox, body)
    except InputError as error:
        said = error.code
    (left,) = sandbox.idle
    assert left is child  # it was not killed, so its peak is known
    growth = peak_bytes(child) - before
    print(f"{name}: {len(body)} bytes, {said}, {growth / 1e6:.0f} MB")
    assert growth < memory_for("JPEG2000", len(body), 250 * 250)
    sandbox.close()
    assert said in ("ok", "undecodable", "too_many_pixels")


@pytest.mark.parametrize("side", [256, 512, 1024])
def test_tiles_as_they_are_written_may_be_larger_than_a_small_picture(side: int, sandbox: Sandbox) -> None:
    assert crop(sandbox, tile(side, 40)) == crop(sandbox, saved(Image.new("L", (40, 40)), "TIFF"))


def test_a_child_gets_the_same_memory_after_a_large_picture(sandbox: Sandbox, body: bytes) -> None:
    first = crop(sandbox, body)
    (child,) = sandbox.idle
    crop(sandbox, saved(Image.new("RGB", (4000, 3000)), "TIFF", compression="tiff_lzw"))
    assert crop(sandbox, body) == first
    with pytest.raises(InputError, match="truncated, corrupt, or it takes more than"):
        crop(sandbox, tile(16_000))
    assert crop(sandbox, body) == first
    assert list(sandbox.idle) == [child]


def test_large_pictures_take_turns(sandbox: Sandbox, body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    first, waits, released, order = crop(sandbox, body), threading.Event(), [], []
    acquire, send = sandbox._megabytes.acquire, Child.send
    monkeypatch.setattr(sandbox._megabytes, "acquire", lambda: waits.set() or acquire())
    with ThreadPoolExecutor(1) as pool:
        with sandbox._memory((MEMORY_BYTES >> 20) - 1):
            waits.clear()
            monkeypatch.setattr(Child, "send", lambda *a: order.append(bool(released)) or send(*a))
            asked = pool.submit(crop, sandbox, body)
            assert waits.wait(HANG_SECONDS)
            released.append(True)
        assert asked.result(60) == first
    assert order == [False, True]  # the body before, what is wanted of it after the memory was free
    with sandbox._memory(MEMORY_BYTES >> 20):  # all was given back
        pass
