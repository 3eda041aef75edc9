"""Reads the orientation tag of an EXIF block, the only tag that changes pixels.

Pillow would read every tag, and a hostile block may have 65,535 entries that all point at the same megabyte.
"""

from typing import Literal

_Order = Literal["little", "big"]

_ORIENTATION_TAG = 0x0112
_SHORT = 3
_MAX_ENTRIES = 512


def orientation(block: bytes) -> int:
    """Return the orientation, 1..8, of a TIFF-structured block; 1 if it is absent or invalid."""
    if block.startswith(b"Exif\0\0"):
        block = block[6:]
    order = _byte_order(block)
    if order is None:
        return 1
    start = int.from_bytes(block[4:8], order)
    count = int.from_bytes(block[start : start + 2], order)
    for i in range(min(count, _MAX_ENTRIES)):
        entry = block[start + 2 + 12 * i : start + 14 + 12 * i]
        if len(entry) < 12:
            return 1
        if int.from_bytes(entry[:2], order) == _ORIENTATION_TAG:
            return _valid(entry, order)
    return 1


def _valid(entry: bytes, order: _Order) -> int:
    if int.from_bytes(entry[2:4], order) != _SHORT:
        return 1
    value = int.from_bytes(entry[8:10], order)
    return value if 1 <= value <= 8 else 1


def _byte_order(block: bytes) -> _Order | None:
    if block[:4] == b"II*\0":
        return "little"
    if block[:4] == b"MM\0*":
        return "big"
    return None
