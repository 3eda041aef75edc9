"""TIFF headers: the first directory, read just far enough to bound what a decoder will do with it (TIFF 6.0).

A directory can point many strips at the same bytes, declare a tile far larger than the picture, or list
millions of values: each costs a decoder more than the picture's size tells.
"""

from dataclasses import dataclass
from typing import Literal

from ..errors import undecodable, unsupported
from ..info import ImageInfo

MAX_ENTRIES = 1024
MAX_VALUES = 65536  # of one tag: enough for a strip per row of the tallest picture, four planes
_COMPRESSIONS = {1: "none", 2: "CCITT", 3: "CCITT", 4: "CCITT", 5: "LZW", 7: "JPEG", 8: "deflate"}
_COMPRESSIONS |= {32773: "packbits", 32946: "deflate"}
_TYPE_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}
_TYPE_BYTES |= {16: 8, 17: 8, 18: 8}
_OPAQUE_TYPES = (1, 2, 7)  # stay bytes in Pillow, whatever their length
_WIDTH, _HEIGHT, _COMPRESSION, _ORIENTATION, _SAMPLES = 256, 257, 259, 274, 277
_BYTE_COUNTS, _TILE_WIDTH, _TILE_HEIGHT, _TILE_BYTE_COUNTS = 279, 322, 323, 325
_PROGRESSIVE_FRAMES = (b"\xff\xc2", b"\xff\xc3", b"\xff\xc9", b"\xff\xca")


@dataclass(frozen=True)
class _Entry:
    """One directory entry: where its values lie and how they are stored."""

    type: int
    count: int
    position: int


class _Directory:
    """The first directory of a TIFF (classic or BigTIFF), its values read on demand."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.order: Literal["little", "big"] = "little" if data[:2] == b"II" else "big"
        self.big = self._int(2, 2) == 43
        self.entries = self._read_entries()

    def first(self, tag: int, default: int) -> int:
        """First value of an integer tag."""
        values = self.values(tag, limit=1)
        return values[0] if values else default

    def values(self, tag: int, limit: int = MAX_VALUES) -> list[int]:
        """Values of an integer tag; empty where it is absent or not of integers."""
        entry = self.entries.get(tag)
        if entry is None or entry.type not in (1, 3, 4, 13, 16):
            return []
        size = _TYPE_BYTES[entry.type]
        return [self._int(entry.position + size * i, size) for i in range(min(entry.count, limit))]

    def _read_entries(self) -> dict[int, _Entry]:
        pointer_bytes, count_bytes, entry_bytes = (8, 8, 20) if self.big else (4, 2, 12)
        start = self._int(8 if self.big else 4, pointer_bytes)
        count = self._int(start, count_bytes)
        start += count_bytes
        if count > MAX_ENTRIES or count == 0 or start + count * entry_bytes > len(self.data):
            raise undecodable(f"TIFF directory is cut off or has {count} entries: expected 1..{MAX_ENTRIES}")
        entries: dict[int, _Entry] = {}
        referred_bytes = 0
        for position in range(start, start + count * entry_bytes, entry_bytes):
            tag, entry = self._read_entry(position, pointer_bytes)
            if tag in entries:
                raise undecodable(f"TIFF directory names tag {tag} twice")
            entries[tag] = entry
            referred_bytes += _TYPE_BYTES.get(entry.type, 0) * entry.count
        if referred_bytes > len(self.data):
            raise undecodable(f"TIFF tags refer to {referred_bytes} bytes of {len(self.data)}")
        return entries

    def _read_entry(self, position: int, pointer_bytes: int) -> tuple[int, _Entry]:
        tag, kind = self._int(position, 2), self._int(position + 2, 2)
        count = self._int(position + 4, pointer_bytes)
        if count > MAX_VALUES and kind not in _OPAQUE_TYPES:
            raise undecodable(f"TIFF tag {tag} has {count} values: expected at most {MAX_VALUES}")
        inline = position + 4 + pointer_bytes
        outside = _TYPE_BYTES.get(kind, 0) * count > pointer_bytes
        return tag, _Entry(kind, count, self._int(inline, pointer_bytes) if outside else inline)

    def _int(self, position: int, size: int) -> int:
        return int.from_bytes(self.data[position : position + size], self.order)


def read_tiff(data: bytes) -> ImageInfo:
    """The header of a TIFF; raises InputError where it is broken, exotic, or dearer than its size tells."""
    directory = _Directory(data)
    width, height = directory.first(_WIDTH, 0), directory.first(_HEIGHT, 0)
    _check_compression(data, directory.first(_COMPRESSION, 1))
    counts = directory.values(_BYTE_COUNTS) + directory.values(_TILE_BYTE_COUNTS)
    if sum(counts) > 2 * len(data):
        raise undecodable(f"TIFF strips refer to {sum(counts)} bytes of {len(data)}")
    tile = directory.first(_TILE_WIDTH, 0) * directory.first(_TILE_HEIGHT, 0)
    if tile > max(4 * width * height, 1 << 18):
        raise undecodable(f"TIFF has tiles of {tile} px for a picture of {width * height} px")
    if directory.first(_ORIENTATION, 1) in (5, 6, 7, 8):
        width, height = height, width  # Pillow turns TIFF itself
    mode = {1: "L", 4: "RGBA"}.get(directory.first(_SAMPLES, 1), "RGB")
    return ImageInfo("TIFF", width, height, mode, cost="tiff")


def _check_compression(data: bytes, compression: int) -> None:
    if compression not in _COMPRESSIONS:
        accepted = ", ".join(sorted(set(_COMPRESSIONS.values())))
        raise unsupported(f"TIFF compression {compression} is not accepted: expected {accepted}")
    # TIFF technical note 2 allows sequential scans only; others cost a pass a scan, unbounded
    if compression == 7 and any(marker in data for marker in _PROGRESSIVE_FRAMES):
        raise undecodable("TIFF holds progressive, lossless or arithmetic JPEG")
