"""The items of an AVIF's meta box: where each lies, and what size its picture is said to be.

Counts are bounded before libavif sees them: it looks items up one by one and copies what is listed twice
(ISO/IEC 14496-12, section 8.11; ISO/IEC 23008-12, sections 6.5 and 9.3).
"""

from dataclasses import dataclass, field

from ..errors import undecodable
from .boxes import Box, Fields, children, need, one

MAX_ITEMS = 1024
MAX_EXTENTS = 4 * MAX_ITEMS
MAX_REFERENCE_BYTES = 16 * MAX_ITEMS  # a tile takes 2 bytes, its alpha 14


@dataclass
class Item:
    """One item; `size` is the width and height of its ispe property, px."""

    type: bytes = b""
    extents: list[tuple[int, int]] = field(default_factory=list)
    size: tuple[int, int] | None = None

    @property
    def length(self) -> int:
        """Bytes of the item, all extents together."""
        return sum(length for _, length in self.extents)

    def read(self, data: bytes) -> bytes | memoryview:
        """The content of the item, copied only where it is in pieces."""
        if len(self.extents) == 1:
            start, length = self.extents[0]
            return memoryview(data)[start : start + length]
        return b"".join(data[start : start + length] for start, length in self.extents)


@dataclass(frozen=True)
class Items:
    """The items by id, and which one is the picture (0: not said)."""

    by_id: dict[int, Item]
    primary: int


def read_items(data: bytes, meta: Box) -> Items:
    """All items of a meta box; raises InputError where a count or a position is out of bounds."""
    boxes = children(data, meta, skip=4)
    for name in (b"iref", b"grpl"):
        box = one(boxes, name)
        if box is not None and box.end - box.start > MAX_REFERENCE_BYTES:
            raise undecodable(f"AVIF references take {box.end - box.start} bytes: limit {MAX_REFERENCE_BYTES}")
    items: dict[int, Item] = {}
    if one(boxes, b"iinf") is not None:
        _read_types(data, need(boxes, b"iinf"), items)
    if one(boxes, b"iloc") is not None:
        _read_locations(data, need(boxes, b"iloc"), one(boxes, b"idat"), items)
    if one(boxes, b"iprp") is not None:
        _read_sizes(data, need(boxes, b"iprp"), items)
    _check_bytes(data, items)
    pitm = one(boxes, b"pitm")
    return Items(items, _versioned(Fields(data, pitm)) if pitm else 0)


def _check_bytes(data: bytes, items: dict[int, Item]) -> None:
    """Items in pieces and metadata are copied: together they may not be more than the body."""
    copied = sum(i.length for i in items.values() if i.type != b"av01" or len(i.extents) > 1)
    if copied > len(data):
        raise undecodable(f"AVIF items refer to {copied} bytes of {len(data)}")


def _versioned(fields: Fields) -> int:
    """A number that is of 2 bytes in version 0 of its box and of 4 in later ones."""
    return fields.take(4 if fields.take(4) >> 24 else 2)


def _read_types(data: bytes, iinf: Box, items: dict[int, Item]) -> None:
    fields = Fields(data, iinf)
    _versioned(fields)
    for box in children(data, fields.left()):
        entry = Fields(data, box)
        version = entry.take(4) >> 24
        number = entry.take(4 if version > 2 else 2)
        entry.take(2)
        if box.name != b"infe" or version < 2 or number in items:
            raise undecodable(f"AVIF item {number} is described twice or in an unknown way")
        _add(items, number).type = entry.take(4).to_bytes(4, "big")


def _read_locations(data: bytes, iloc: Box, idat: Box | None, items: dict[int, Item]) -> None:
    fields = Fields(data, iloc)
    version = fields.take(4) >> 24
    sizes = fields.take(2)
    offset_bytes, length_bytes, base_bytes, index_bytes = (sizes >> shift & 15 for shift in (12, 8, 4, 0))
    seen: set[int] = set()
    extents = 0
    for _ in range(fields.take(4 if version > 1 else 2)):
        number = fields.take(4 if version > 1 else 2)
        inside = bool(version and fields.take(2) & 15)
        source = idat if inside else Box(b"file", 0, len(data), "AVIF")
        fields.take(2)
        base, count = fields.take(base_bytes), fields.take(2)
        extents += count
        if number in seen or extents > MAX_EXTENTS:
            raise undecodable(f"AVIF item {number} is located twice, or items have over {MAX_EXTENTS} pieces")
        seen.add(number)
        item = _add(items, number)
        for _ in range(count):
            fields.take(index_bytes if version else 0)
            start, length = base + fields.take(offset_bytes), fields.take(length_bytes)
            if source is None or source.start + start + length > source.end:
                raise undecodable(f"AVIF item {number} ends at byte {start + length}: past the end")
            item.extents.append((source.start + start, length))


def _read_sizes(data: bytes, iprp: Box, items: dict[int, Item]) -> None:
    """The ispe property of each item, through the associations (ipma) with the property list (ipco)."""
    boxes = children(data, iprp)
    properties = children(data, need(boxes, b"ipco"))
    seen: set[int] = set()
    for box in boxes:
        if box.name != b"ipma":
            continue
        fields = Fields(data, box)
        head = fields.take(4)
        for _ in range(fields.take(4)):
            number = fields.take(4 if head >> 24 else 2)
            if number in seen:
                raise undecodable(f"AVIF item {number} has two lists of properties")
            seen.add(number)
            wide = head & 1
            numbers = [fields.take(1 + wide) & (0x7FFF if wide else 0x7F) for _ in range(fields.take(1))]
            own = [properties[i - 1] for i in numbers if 0 < i <= len(properties)]
            ispe = one(own, b"ispe")
            item = _add(items, number)
            if ispe is not None:
                values = Fields(data, ispe)
                values.take(4)
                item.size = values.take(4), values.take(4)


def _add(items: dict[int, Item], number: int) -> Item:
    """The item of that id, made where it is new."""
    if number not in items and len(items) >= MAX_ITEMS:
        raise undecodable(f"AVIF has more than {MAX_ITEMS} items")
    return items.setdefault(number, Item())
