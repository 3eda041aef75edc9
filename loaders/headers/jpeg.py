"""Reads JPEG headers marker by marker: size, coding process, sampling, orientation and number of scans.

Pillow's reader steps through padding byte by byte and parses every metadata segment in Python, which takes seconds if a
20 MiB body has nothing else. This one limits segments and bytes between them (ITU-T T.81, annex B).
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import undecodable, unsupported
from .exif import orientation as exif_orientation
from .info import CostClass, ImageInfo

MAX_SEGMENTS = 1024  # of 64 KiB each they are more than a 20 MiB body can hold
MAX_JUNK_BYTES = 4096  # padding and garbage between segments
MAX_SCANS = 1000  # a progressive photograph has about 10

_SOI, _EOI, _SOS, _DRI, _APP1 = 0xD8, 0xD9, 0xDA, 0xDD, 0xE1
_JPEG_LS_SOF = 0xF7
_BASELINE, _PROGRESSIVE, _LOSSLESS = (0xC0, 0xC1), (0xC2,), (0xC3,)
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_WITHOUT_LENGTH = frozenset((0x01, *range(0xD0, 0xD9)))
_NEXT_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")  # inside coded data: neither a stuffed byte nor a restart
# Luma sampling over 1x1 chroma that TurboJPEG names: 4:4:4, 4:2:2, 4:4:0, 4:2:0, 4:1:1, 4:4:1
_TURBO_SAMPLING = frozenset(((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4)))


@dataclass(frozen=True)
class _Frame:
    """The frame header (SOF)."""

    marker: int
    width: int
    height: int
    sampling: tuple[tuple[int, int], ...]


@dataclass
class _Walk:
    """The state of a walk through the segments, and what it has found."""

    position: int = 2
    segments: int = 0
    junk_bytes: int = 0
    orientation: int | None = None
    frame: _Frame | None = None


def read_jpeg(data: bytes) -> ImageInfo:
    """Read the header of a JPEG; raises InputError if it is broken or of a coding process that is not accepted."""
    walk = _Walk()
    scan_components = _walk_to_scan(data, walk)
    frame = walk.frame
    if frame is None:
        raise undecodable("JPEG has no frame header before its first scan")
    progressive = frame.marker in _PROGRESSIVE or scan_components < len(frame.sampling)
    return ImageInfo(
        format="JPEG",
        width=frame.width,
        height=frame.height,
        mode={1: "L", 3: "RGB", 4: "CMYK"}[len(frame.sampling)],
        orientation=walk.orientation or 1,
        progressive=progressive,
        cost=_cost(frame, progressive),
        scans=_count_scans(data, walk.position) if progressive else 1,
        turbo=_turbo(frame),
    )


class Scan(NamedTuple):
    """The first scan of a JPEG, without comments, EXIF, ICC and the like; JFIF and Adobe stay: they tell the colours.

    A decoder parses the header that is left in no time.
    """

    header: bytes  # up to the coded data, without what lies between segments
    coded: bytes  # and what follows
    frame_at: int  # where the frame header's body begins in `header`
    restart_interval: int  # MCUs between two restart markers; 0: none


def first_scan(data: bytes) -> Scan:
    """Return the first scan of a body that has passed `read_jpeg`."""
    header, walk, frame_at, restart_interval, marker = bytearray(b"\xff\xd8"), _Walk(), 0, 0, 0
    while marker != _SOS:
        marker, begin = _next_marker(data, walk), walk.position
        walk.position += _length(data, begin)
        if marker == 0xFE or (0xE1 <= marker <= 0xEF and marker != 0xEE):
            continue
        header += bytes((0xFF, marker)) + data[begin : walk.position]
        if marker in _FRAME_MARKERS:
            frame_at = len(header) - (walk.position - begin) + 2
        elif marker == _DRI:
            restart_interval = int.from_bytes(data[begin + 2 : begin + 4], "big")
    return Scan(bytes(header), data[walk.position :], frame_at, restart_interval)


def has_whole_scan(data: bytes) -> bool:
    """Whether the coded data of the only scan goes on to the end-of-image marker, with no other marker inside.

    A truncated JPEG has no such end, and random damage leaves markers where none may be; a GPU's decoder does not check
    and makes garbage of both. The data must have passed `read_jpeg` and have one scan.
    """
    walk = _Walk()
    _walk_to_scan(data, walk)
    match = _NEXT_MARKER.search(data, walk.position)
    return match is not None and data[match.start() + 1] == _EOI


def _walk_to_scan(data: bytes, walk: _Walk) -> int:
    """Step to the first scan and fill `walk`; return the number of components in that scan."""
    while True:
        marker = _next_marker(data, walk)
        length = _length(data, walk.position)
        body = walk.position + 2
        if marker in _FRAME_MARKERS or marker == _JPEG_LS_SOF:
            if walk.frame is not None:
                raise undecodable("JPEG has two frame headers")
            walk.frame = _read_frame(marker, data[body : walk.position + length])
        elif marker == _APP1 and walk.orientation is None and data[body : body + 6] == b"Exif\0\0":
            walk.orientation = exif_orientation(data[body : walk.position + length])
        walk.position += length
        if marker == _SOS:
            return data[body]


def _next_marker(data: bytes, walk: _Walk) -> int:
    """Step over junk and padding to the next marker with a length; `position` is then at that length."""
    while True:
        at = data.find(b"\xff", walk.position)
        code = at + 1
        while code < len(data) and data[code] == 0xFF and code - at <= MAX_JUNK_BYTES:
            code += 1
        if at < 0 or code >= len(data) or data[code] == _EOI:
            raise undecodable("JPEG ends before its first scan")
        walk.junk_bytes += code - 1 - walk.position
        walk.position = code + 1
        if data[code] not in _WITHOUT_LENGTH and data[code] != 0:
            break
        walk.junk_bytes += 2
    walk.segments += 1
    if walk.segments > MAX_SEGMENTS or walk.junk_bytes > MAX_JUNK_BYTES:
        raise undecodable(f"JPEG header has more than {MAX_SEGMENTS} segments or {MAX_JUNK_BYTES} bytes between them")
    return data[code]


def _length(data: bytes, position: int) -> int:
    """Return the length, bytes, of the segment whose length field is at `position`, the field included."""
    length = int.from_bytes(data[position : position + 2], "big")
    if length < 2 or position + length > len(data):
        raise undecodable("JPEG header is cut off or has a segment of impossible length")
    return length


def _read_frame(marker: int, body: bytes) -> _Frame:
    if marker == _JPEG_LS_SOF:
        raise unsupported("JPEG-LS is not accepted: expected baseline or progressive JPEG")
    if marker not in _BASELINE + _PROGRESSIVE + _LOSSLESS:
        raise unsupported(f"JPEG process SOF{marker - 0xC0} is not accepted: expected SOF0, 1, 2 or 3")
    if len(body) < 6 or len(body) < 6 + 3 * body[5] or body[5] not in (1, 3, 4):
        raise undecodable("JPEG frame header is broken")
    if body[0] != 8:
        raise unsupported(f"JPEG has {body[0]} bits a sample: expected 8")
    height, width = int.from_bytes(body[1:3], "big"), int.from_bytes(body[3:5], "big")
    sampling = tuple((body[7 + 3 * i] >> 4, body[7 + 3 * i] & 15) for i in range(body[5]))
    return _Frame(marker, width, height, sampling)


def _cost(frame: _Frame, progressive: bool) -> CostClass:
    if frame.marker in _LOSSLESS or len(frame.sampling) == 4:
        return "jpeg_slow"
    return "jpeg_scans" if progressive else "jpeg"


def _turbo(frame: _Frame) -> bool:
    """Whether TurboJPEG decodes it as Pillow does: it takes few samplings, no lossless, and makes other RGB of CMYK."""
    if frame.marker in _LOSSLESS or len(frame.sampling) == 4:
        return False
    if len(frame.sampling) == 1:
        return True
    return frame.sampling[0] in _TURBO_SAMPLING and frame.sampling[1:] == ((1, 1), (1, 1))


def _count_scans(data: bytes, position: int) -> int:
    """Count the scans up to the end of the image; `position` is inside the first one."""
    scans = 1
    for _ in range(8 * MAX_SCANS):  # tables may stand between scans
        match = _NEXT_MARKER.search(data, position)
        if match is None or data[match.start() + 1] == _EOI:
            return scans
        marker, position = data[match.start() + 1], match.end()
        if marker not in _WITHOUT_LENGTH:
            position += int.from_bytes(data[position : position + 2], "big")
        scans += marker == _SOS
        if scans > MAX_SCANS:
            break
    raise undecodable(f"JPEG has more than {MAX_SCANS} scans or {8 * MAX_SCANS} segments")
