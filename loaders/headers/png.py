"""Reads PNG headers chunk by chunk: size, layout and orientation (W3C PNG, 3rd edition, section 5).

Chunks that change no pixel (text, ICC, time) never reach a decoder, since they may inflate to 64 MiB.
"""

import zlib
from typing import NamedTuple

from ..errors import undecodable
from .exif import orientation as exif_orientation
from .info import ImageInfo

MAX_CHUNKS = 16384  # libpng writes 8 KiB in each: 2,560 in a 20 MiB body
_SIGNATURE_BYTES = 8
_PIXEL_CHUNKS = (b"IHDR", b"PLTE", b"IDAT", b"IEND")
_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_MODES = {0: "L", 2: "RGB", 3: "P", 4: "LA", 6: "RGBA"}


class _Chunk(NamedTuple):
    """One chunk: `start` is at its length field, `end` behind its checksum."""

    name: bytes
    start: int
    end: int


def read_png(data: bytes) -> ImageInfo:
    """Read the header of a PNG; raises InputError if the chunks do not lead from IHDR to IEND."""
    chunks = _chunks(data)
    body = _body(data, chunks[0])
    if chunks[0].name != b"IHDR" or len(body) != 13 or sum(c.name == b"IHDR" for c in chunks) != 1:
        raise undecodable("PNG does not start with one header chunk")
    width, height = int.from_bytes(body[:4], "big"), int.from_bytes(body[4:8], "big")
    depth, colour, compression, filtering, interlace = body[8:13]
    if depth not in _DEPTHS.get(colour, ()) or compression or filtering or interlace > 1:
        raise undecodable(f"PNG header has bit depth {depth} with colour type {colour}: no such layout")
    named = {chunk.name: chunk for chunk in reversed(chunks)}  # the first of each name
    return ImageInfo(
        format="PNG",
        width=width,
        height=height,
        mode=_mode(depth, colour),
        orientation=exif_orientation(_body(data, named[b"eXIf"])) if b"eXIf" in named else 1,
        frames=max(1, int.from_bytes(_body(data, named[b"acTL"])[:4], "big")) if b"acTL" in named else 1,
        cost="png_deep" if depth == 16 else "png",
    )


def pixel_chunks(data: bytes) -> bytes:
    """Return the same picture with only the chunks that make its pixels, checksums verified."""
    kept = [data[:_SIGNATURE_BYTES]]
    for chunk in _chunks(data):
        if chunk.name in _PIXEL_CHUNKS:
            raw = data[chunk.start : chunk.end]
            if zlib.crc32(memoryview(raw)[4:-4]) != int.from_bytes(raw[-4:], "big"):
                raise undecodable("PNG chunk has a wrong checksum")
            kept.append(raw)
    return b"".join(kept)


def _chunks(data: bytes) -> list[_Chunk]:
    chunks: list[_Chunk] = []
    start = _SIGNATURE_BYTES
    while not chunks or chunks[-1].name != b"IEND":
        end = start + 12 + int.from_bytes(data[start : start + 4], "big")
        if start + 12 > len(data) or end > len(data):
            raise undecodable(f"PNG is cut off: a chunk ends at byte {max(end, start + 12)} of {len(data)}")
        if len(chunks) >= MAX_CHUNKS:
            raise undecodable(f"PNG has more than {MAX_CHUNKS} chunks")
        chunks.append(_Chunk(data[start + 4 : start + 8], start, end))
        start = end
    return chunks


def _body(data: bytes, chunk: _Chunk) -> bytes:
    return data[chunk.start + 8 : chunk.end - 4]


def _mode(depth: int, colour: int) -> str:
    if colour == 0 and depth in (1, 16):
        return "1" if depth == 1 else "I;16"
    return _MODES[colour]
