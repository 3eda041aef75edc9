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

# --- AVIF: sizes that lie, grids, EXIF ---


def said_to_be(body: bytes, width: int, height: int) -> bytes:
    """Write another size into every `ispe` box of the body."""
    at = body.find(b"ispe")
    while at >= 0:
        body = body[: at + 8] + struct.pack(">II", width, height) + body[at + 16 :]
        at = body.find(b"ispe", at + 4)
    return body


def grid(tile: bytes, tile_size: tuple[int, int], rows: int, columns: int) -> bytes:
    """Make an AVIF grid that shows the same tile at each place. The grid lies in `idat`, the tile in `mdat`."""
    size = (tile_size[0] * columns, tile_size[1] * rows)
    stream = tile[tile.index(b"mdat") + 4 :]
    config = _box(b"av1C", tile[tile.index(b"av1C") + 4 :][:4])
    tiles = range(2, 2 + rows * columns)
    shape = struct.pack(">BBBBII", 0, 1, rows - 1, columns - 1, *size)
    infe = [
        _full(b"infe", struct.pack(">HH4s", number, 0, kind) + b"\0", version=2)
        for number, kind in [(1, b"grid"), *((tile, b"av01") for tile in tiles)]
    ]
    ispe = [_full(b"ispe", struct.pack(">II", *each)) for each in (size, tile_size)]
    properties = _box(b"ipco", b"".join(ispe) + _full(b"pixi", b"\3\x08\x08\x08") + config)
    associations = struct.pack(">IHBBB", 1 + len(tiles), 1, 2, 1, 3)
    associations += b"".join(struct.pack(">HBBBB", tile, 3, 2, 3, 0x84) for tile in tiles)

    def meta(offset: int) -> bytes:
        places = struct.pack(">HHHHII", 1, 1, 0, 1, 0, len(shape))
        places += b"".join(struct.pack(">HHHHII", tile, 0, 0, 1, offset, len(stream)) for tile in tiles)
        return _full(
            b"meta",
            _full(b"hdlr", bytes(4) + b"pict" + bytes(13))
            + _full(b"pitm", struct.pack(">H", 1))
            + _full(b"iloc", struct.pack(">HH", 0x4400, 1 + len(tiles)) + places, version=1)
            + _full(b"iinf", struct.pack(">H", len(infe)) + b"".join(infe))
            + _full(b"iref", _box(b"dimg", struct.pack(f">HH{len(tiles)}H", 1, len(tiles), *tiles)))
            + _box(b"iprp", properties + _full(b"ipma", associations))
            + _box(b"idat", shape),
        )

    head = _box(b"ftyp", b"avif" + bytes(4) + b"avifmif1miaf")
    return head + meta(len(head) + len(meta(0)) + 8) + _box(b"mdat", stream)


def with_exif(tags: int, size: int) -> bytes:
    """Make an AVIF whose EXIF block has many tags that all refer to the same `size` bytes."""
    exif = Image.Exif()
    exif[0x010E] = "a" * 1_000_000
    body = encoded(Image.new("RGB", (8, 8)), "AVIF", speed=10, exif=exif)
    at = body.rindex(b"MM\0*")
    entries = b"".join(struct.pack(">HHII", i, 7, size, 8) for i in range(tags))
    block = b"MM\0*" + struct.pack(">IH", 8, tags) + entries
    return body[:at] + block + body[at + len(block) :]


def _box(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(content), name) + content


def _full(name: bytes, content: bytes, version: int = 0) -> bytes:
    return _box(name, bytes([version, 0, 0, 0]) + content)


# --- JPEG 2000: claims of tiles, code-blocks, precincts and packets that are not there ---


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
    """Make a codestream of these parameters in which every tile has the same data; zeros are empty packets."""
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


# --- TIFF: one strip or tile ---

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


# --- headers that go on and on, frames that are not there ---


def gif_of(frame: bytes, comments: int = 0) -> bytes:
    """Make a GIF of 8 x 8 px with another size of its frame, and so many comments before it."""
    gif = encoded(Image.new("P", (8, 8)), "GIF")
    first = gif.index(b",")
    blocks = b"!\xfe" + b"\1a" * comments + b"\0" if comments else b""
    return gif[:first] + blocks + gif[first : first + 5] + frame + gif[first + 9 :]


def run_length_bmp(width: int, height: int, pairs: int) -> bytes:
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, 0, 0, 0, 256, 0)
    return struct.pack("<2sIHHI", b"BM", 0, 0, 0, 1078) + header + bytes(range(256)) * 4 + b"\xff\0" * pairs


def tiff_of_values() -> bytes:
    return b"II*\0\x08\0\0\0\1\0" + struct.pack("<HHII", 273, 4, 4_000_000, 8) + bytes(16_000_000)


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
    "avif as a grid": lambda: grid(encoded(noise(64, 64), "AVIF", speed=10), (64, 64), 2, 3),
    "jpeg2000": lambda: encoded(noise(1460, 1400), "JPEG2000"),
    "jpeg2000 of 8 MP": lambda: encoded(Image.new("RGB", (4000, 2000)), "JPEG2000"),
}
# What these claim is far more than the picture, which may take what a picture of its size takes.
CLAIMS: dict[str, Callable[[], bytes]] = {
    "gif of a frame of 16,000 px": lambda: gif_of(struct.pack("<HH", 16_000, 16_000)),
    "jpeg2000 of a tile of 8,000 px": lambda: declaring(100, 100, 3, tile=(8000, 8000)),
    "avif of 6,000 px that says 64": lambda: said_to_be(
        encoded(Image.new("RGB", (6000, 6000)), "AVIF", speed=10, subsampling="4:4:4"), 64, 64
    ),
    "tiff of a tile of 16,000 px": lambda: tile(16_000),
    "tiff of a tile of 4,000 px": lambda: tile(4_000),
    "tiff of a wide tile": lambda: tiff((100, 100), zlib.compress(bytes(64 << 20), 9), _322=4 << 20, _323=16),
    "tiff of a strip of 4 billion rows": lambda: tiff((100, 100), zlib.compress(bytes(64 << 20), 9), _278=0xFFFFFFFF),
    "tiff of many samples": lambda: tiff((100, 100), zlib.compress(bytes(64 << 20), 9), _277=65_535),
    "jpeg2000 with precincts": lambda: declaring(250, 250, precincts=(0, 0), data=bytes(62_500)),
    "bmp of run lengths": lambda: run_length_bmp(100, 100, 2_000_000),
    "ppm of long numbers": lambda: b"P3 100 100 255\n" + b"0" * 8_000_000,
}
# Some of these are sound pictures that are merely expensive; what they cost is bounded as well.
BOMBS: dict[str, Callable[[], bytes]] = {
    "large bmp of run lengths": lambda: run_length_bmp(5000, 4000, 10_000_000),
    "ppm of 200 levels": lambda: b"P6 2600 2600 200\n" + bytes(3 * 2600 * 2600),
    "plain ppm of comments": lambda: b"P3 # a\n8 8 255\n" + b"#\n" * 9_000_000,
    "plain ppm in one line": lambda: b"P3 4000 4000 255\n" + b"7 " * 10_000_000,
    "gif of blocks": lambda: gif_of(struct.pack("<HH", 8, 8), comments=8_000_000),
    "tiff of entries": lambda: b"II*\0\x08\0\0\0\xff\xff" + bytes(12 * 0xFFFF + 4),
    "tiff of values": tiff_of_values,
    "avif grid of large tiles": lambda: grid(
        encoded(Image.new("RGB", (1000, 750)), "AVIF", speed=10), (1000, 750), 4, 4
    ),
    "avif exif of copies": lambda: with_exif(tags=65_000, size=200_000),
    "jpeg2000 of blocks": lambda: declaring(2800, 2800, planes=4, blocks=(2, 2)),
    "jpeg2000 of tiles": lambda: declaring(255, 255, tile=(1, 1)),
    "jpeg2000 of precincts": lambda: declaring(2000, 2000, precincts=(0, 0)),
    "jpeg2000 of layers": lambda: declaring(64, 64, 4, layers=65535),
    "jpeg2000 of comments": lambda: declaring(64, 64).replace(
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
@pytest.mark.slow_beyond(4)
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
