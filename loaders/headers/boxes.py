"""The boxes of an ISO base media file (ISO/IEC 14496-12, section 4.2): found, never interpreted, bounded."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import undecodable

MAX_BOXES = 2048  # side by side; libavif's work grows with their square


@dataclass(frozen=True)
class Box:
    """One box: its content is data[start:end]; `format` is for messages."""

    name: bytes
    start: int
    end: int
    format: str


class Fields:
    """Big-endian integers one after the other; reading past the end is an InputError."""

    def __init__(self, data: bytes, box: Box) -> None:
        self.data = data
        self.box = box
        self.position = box.start
        self.end = box.end

    def take(self, size: int) -> int:
        """The next `size` bytes as an unsigned integer (0 bytes are 0)."""
        end = self.position + size
        if end > self.end:
            raise undecodable(f"{self.box.format} box {said(self.box.name)} is cut off")
        value = int.from_bytes(self.data[self.position : end], "big")
        self.position = end
        return value

    def left(self) -> Box:
        """What has not been read yet, as a box of the same name."""
        return Box(self.box.name, self.position, self.end, self.box.format)


def children(data: bytes, parent: Box, skip: int = 0) -> list[Box]:
    """The boxes inside `parent` behind `skip` bytes of its own fields; raises where they do not fill it."""
    boxes, position = _walk(data, parent.start + skip, parent.end, parent.format)
    if position != parent.end:
        raise undecodable(f"{parent.format} box {said(parent.name)} is cut off")
    return boxes


def file_boxes(data: bytes, format: str) -> list[Box]:
    """The boxes of the file, up to what is no box any more: decoders do not mind garbage at the end."""
    return _walk(data, 0, len(data), format)[0]


def one(boxes: Sequence[Box], name: bytes) -> Box | None:
    """The box of that name; raises where there are two, which readers would take differently."""
    found = [box for box in boxes if box.name == name]
    if len(found) > 1:
        raise undecodable(f"{found[0].format} has {len(found)} boxes {said(name)}: expected 1")
    return found[0] if found else None


def need(boxes: Sequence[Box], name: bytes) -> Box:
    """The box of that name; raises where there is none or two."""
    box = one(boxes, name)
    if box is None:
        raise undecodable(f"{boxes[0].format if boxes else 'the body'} has no box {said(name)}")
    return box


def said(name: bytes) -> str:
    """A box name for a message: letters and digits, never bytes of the body as they are."""
    return "".join(chr(code) if chr(code).isalnum() and code < 128 else "?" for code in name)


def _walk(data: bytes, position: int, end: int, format: str) -> tuple[list[Box], int]:
    """The boxes from `position` on and where the first thing that is not a whole box starts."""
    boxes: list[Box] = []
    while position + 8 <= end:
        size, header = int.from_bytes(data[position : position + 4], "big"), 8
        if size == 1:
            size, header = int.from_bytes(data[position + 8 : position + 16], "big"), 16
        elif size == 0:
            size = end - position  # up to the end of the file
        if size < header or position + size > end:
            break
        if len(boxes) >= MAX_BOXES:
            raise undecodable(f"{format} has more than {MAX_BOXES} boxes in one")
        boxes.append(Box(data[position + 4 : position + 8], position + header, position + size, format))
        position += size
    return boxes, position
