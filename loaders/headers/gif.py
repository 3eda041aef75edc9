"""GIF headers: the canvas and the first frame, stepping over the extensions before it (GIF89a)."""

from ..errors import undecodable
from ..info import ImageInfo

MAX_BLOCKS = 4096  # extension blocks before the first frame, 255 bytes each


def read_gif(data: bytes) -> ImageInfo:
    """The header of a GIF; raises InputError where no first frame is found within bounds."""
    if len(data) < 13:
        raise undecodable("GIF header is cut off")
    width, height = _pair(data, 6)
    position = 13 + _table_bytes(data[10])
    blocks = 0
    while data[position : position + 1] == b"!":
        position += 2
        size = 1
        while size and blocks <= MAX_BLOCKS and position < len(data):
            size = data[position]
            position += 1 + size
            blocks += 1
        if blocks > MAX_BLOCKS:
            raise undecodable(f"GIF has more than {MAX_BLOCKS} blocks before its first frame")
    if data[position : position + 1] != b"," or position + 10 > len(data):
        raise undecodable("GIF has no first frame")
    (left, top), (across, down) = _pair(data, position + 1), _pair(data, position + 5)
    # Pillow enlarges a canvas that its first frame sticks out of
    return ImageInfo("GIF", max(width, left + across), max(height, top + down), "P", cost="gif")


def _pair(data: bytes, position: int) -> tuple[int, int]:
    return (
        int.from_bytes(data[position : position + 2], "little"),
        int.from_bytes(data[position + 2 : position + 4], "little"),
    )


def _table_bytes(flags: int) -> int:
    """Size of the colour table that follows a descriptor with these flags."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0
