"""What an AVIF may cost: grids, hidden frames and EXIF blocks that refer to the same bytes many times."""

import struct

import pytest
from PIL import Image

from milkweed.loaders import CpuLoader, InputError, PreprocessSpec
from milkweed.loaders.guard import inspect


def grid(tile: bytes, tile_size: tuple[int, int], rows: int, columns: int, size: tuple[int, int]) -> bytes:
    """A grid that shows the same tile at each place; the grid itself lies in idat, the tiles behind."""
    start = tile.index(b"mdat") + 4
    stream = tile[start:]
    config = _box(b"av1C", tile[tile.index(b"av1C") + 4 :][:4])
    pixi = _full(b"pixi", b"\3\x08\x08\x08")
    tiles = range(2, 2 + rows * columns)
    shape = struct.pack(">BBBBHH", 0, 0, rows - 1, columns - 1, *size)
    infe = [
        _full(b"infe", struct.pack(">HH4s", number, 0, kind) + b"\0", version=2)
        for number, kind in [(1, b"grid"), *((tile, b"av01") for tile in tiles)]
    ]
    properties = _box(b"ipco", _ispe(size) + _ispe(tile_size) + pixi + config)
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


def animation_of_many(body: bytes, copies: int) -> bytes:
    """The first sample of an animation of two becomes itself and many copies of the second."""
    sizes = body.index(b"stsz") + 16
    first, second = struct.unpack(">II", body[sizes : sizes + 8])
    chunks = body.index(b"stco") + 12
    start = int.from_bytes(body[chunks : chunks + 4], "big")
    key, inter = body[start : start + first], body[start + first : start + first + second]
    stream = key + inter * copies
    patched = bytearray(body)
    patched[sizes : sizes + 4] = len(stream).to_bytes(4, "big")
    patched[chunks : chunks + 4] = (len(body) + 8).to_bytes(4, "big")
    return bytes(patched) + _box(b"mdat", stream + inter)


def with_exif(body: bytes, tags: int, size: int) -> bytes:
    """The body with its EXIF block made one whose tags all refer to the same `size` bytes."""
    at = body.rindex(b"MM\0*")
    entries = b"".join(struct.pack(">HHII", 40000 + i, 7, size, 8) for i in range(tags))
    block = b"MM\0*" + struct.pack(">IH", 8, tags) + entries
    return body[:at] + block + body[at + len(block) :]


def _ispe(size: tuple[int, int]) -> bytes:
    return _full(b"ispe", struct.pack(">II", *size))


def _box(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(content), name) + content


def _full(name: bytes, content: bytes, version: int = 0) -> bytes:
    return _box(name, bytes([version, 0, 0, 0]) + content)


def refusal(body: bytes) -> InputError:
    with pytest.raises(InputError) as caught:
        inspect(body)
    return caught.value


def test_grid_is_accepted_when_every_tile_is_what_it_says(picture, encoded):
    tile = encoded(picture(64, 64), "AVIF", speed=10)
    body = grid(tile, (64, 64), rows=2, columns=3, size=(190, 120))
    assert (inspect(body).width, inspect(body).height) == (190, 120)
    loader = CpuLoader(PreprocessSpec(size=32))
    assert loader.load([body]).ok == [0]
    loader.close()
    error = refusal(grid(tile, (32, 32), rows=2, columns=3, size=(96, 64)))
    assert error.message == "AVIF says 32x32 px but its stream is 64x64 px"


def test_grid_of_the_same_large_tile_is_refused(encoded):
    tile = encoded(Image.new("RGB", (2000, 1500)), "AVIF", speed=10)
    error = refusal(grid(tile, (2000, 1500), rows=4, columns=4, size=(6001, 4501)))
    assert error.message == "AVIF takes 54000000 samples in 36 units: limit 50000000 and 8192"


def test_frames_before_the_first_shown_one_count(encoded):
    frames = [Image.new("RGB", (1000, 1000), (shade, 0, 0)) for shade in (10, 200)]
    body = encoded(frames[0], "AVIF", speed=10, save_all=True, append_images=frames[1:], duration=40)
    assert inspect(animation_of_many(body, copies=10)).frames == 2
    error = refusal(animation_of_many(body, copies=33))
    assert error.message.startswith("AVIF takes 51000000 samples in ")


def test_exif_that_refers_to_the_same_bytes_again_and_again_is_refused(picture, encoded):
    exif = Image.Exif()
    exif[0x010E] = "a" * 10_000
    body = encoded(picture(8, 8), "AVIF", speed=10, exif=exif)
    assert inspect(with_exif(body, tags=3, size=5000)).pixels == 64
    assert refusal(with_exif(body, tags=100, size=5000)).message.startswith("AVIF EXIF refers to 500000 bytes")
    assert refusal(with_exif(body, tags=600, size=1)).message.endswith("in 600 tags")
