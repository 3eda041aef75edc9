"""Reads WebP headers from the RIFF chunks: canvas size, alpha, orientation and animation (RFC 9649, section 2)."""

from ..errors import undecodable
from .exif import orientation as exif_orientation
from .info import ImageInfo

MAX_CHUNKS = 4096
_ALPHA_FLAG, _ANIMATION_FLAG = 0x10, 0x02


def read_webp(data: bytes) -> ImageInfo:
    """Read the header of a WebP; raises InputError if it is broken or cut off."""
    end = 8 + int.from_bytes(data[4:8], "little")
    if end > len(data) or len(data) < 30:
        raise undecodable(f"WebP is cut off: it ends at byte {end} of {len(data)}")
    kind = data[12:16]
    if kind == b"VP8X":
        return _extended(data, end)
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = (int.from_bytes(data[i : i + 2], "little") & 0x3FFF for i in (26, 28))
        return ImageInfo("WEBP", width, height, "RGB", cost="webp")
    if kind == b"VP8L" and data[20] == 0x2F:
        bits = int.from_bytes(data[21:25], "little")
        mode = "RGBA" if bits >> 28 & 1 else "RGB"
        return ImageInfo("WEBP", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, mode, cost="webp")
    raise undecodable("WebP has no picture header")


def _extended(data: bytes, end: int) -> ImageInfo:
    flags = data[20]
    width, height = (int.from_bytes(data[i : i + 3], "little") + 1 for i in (24, 27))
    frames, turned, position = 0, 1, 30
    for _ in range(MAX_CHUNKS):
        if position + 8 > end:
            break
        name, size = (
            data[position : position + 4],
            int.from_bytes(data[position + 4 : position + 8], "little"),
        )
        if name == b"EXIF":
            turned = exif_orientation(data[position + 8 : position + 8 + min(size, 1 << 16)])
        frames += name == b"ANMF"
        position += 8 + size + (size & 1)
    else:
        raise undecodable(f"WebP has more than {MAX_CHUNKS} chunks")
    mode = "RGBA" if flags & _ALPHA_FLAG else "RGB"
    frames = max(frames, 1) if flags & _ANIMATION_FLAG else 1
    return ImageInfo("WEBP", width, height, mode, orientation=turned, frames=frames, cost="webp")
