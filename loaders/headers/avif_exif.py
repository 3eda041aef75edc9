"""A bound on the EXIF block of an AVIF, which Pillow parses whole while it opens the file.

Before version 13 it copies what every tag refers to, the same bytes again and again; since then 65,535 small
tags still cost it 0.6 s.
"""

from typing import Literal

from ..errors import undecodable

MAX_BLOCK_BYTES = 1 << 20
MAX_ENTRIES = 512  # of a directory
_POINTERS = (0x8769, 0x8825, 0xA005)  # Exif, GPS and interoperability directories
_MAGIC = (b"II*\0", b"MM\0*")
_TYPE_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}


def check_exif(block: bytes) -> None:
    """Raise InputError where parsing the block would copy more than a few times its size."""
    if len(block) > MAX_BLOCK_BYTES:
        raise undecodable(f"AVIF has an EXIF block of {len(block)} bytes: limit {MAX_BLOCK_BYTES}")
    while block.startswith(b"Exif\0\0"):
        block = block[6:]
    if not block:
        return
    if block[:4] not in _MAGIC:
        raise undecodable("AVIF has an EXIF block that is not one")
    order: Literal["little", "big"] = "big" if block.startswith(b"MM") else "little"
    directories, todo = 0, [int.from_bytes(block[4:8], order)]
    while todo:
        directories += 1
        if directories > 1 + len(_POINTERS):
            raise undecodable(f"AVIF EXIF has more than {1 + len(_POINTERS)} directories")
        todo += _check_directory(block, todo.pop(), order)


def _check_directory(block: bytes, start: int, order: Literal["little", "big"]) -> list[int]:
    """Hold one directory against the bounds; returns where the directories lie that it points at."""
    count = int.from_bytes(block[start : start + 2], order)
    referred_bytes, found = 0, []
    for position in range(start + 2, start + 2 + 12 * min(count, MAX_ENTRIES + 1), 12):
        tag, kind = (int.from_bytes(block[i : i + 2], order) for i in (position, position + 2))
        values, value = (int.from_bytes(block[i : i + 4], order) for i in (position + 4, position + 8))
        referred_bytes += _TYPE_BYTES.get(kind, 8) * values
        if tag in _POINTERS:
            found.append(value)
    if count > MAX_ENTRIES or referred_bytes > 2 * len(block):
        raise undecodable(f"AVIF EXIF refers to {referred_bytes} bytes of {len(block)} in {count} tags")
    return found
