"""BMP and PPM headers; the variants that Pillow decodes in Python are of cost `interpreted`."""

import re

from ..errors import undecodable
from ..info import ImageInfo

MAX_PLAIN_COMMENTS = 64  # Pillow copies the rest of the body for each of them
_TOKEN = re.compile(rb"(?:[ \t\r\n\v\f]|#[^\r\n]{0,1024}[\r\n])+([0-9]{1,9})(?=[ \t\r\n\v\f#])")
_BMP_UNCOMPRESSED = (0, 3, 6)  # none, bit fields, bit fields with alpha


def read_bmp(data: bytes) -> ImageInfo:
    """The header of a BMP, whatever its version."""
    size = int.from_bytes(data[14:18], "little")
    if len(data) < 14 + size:
        raise undecodable("BMP header is cut off")
    if size == 12:
        width, height, _, bits = (int.from_bytes(data[i : i + 2], "little") for i in (18, 20, 22, 24))
        compression = 0
    else:
        width, height = (int.from_bytes(data[i : i + 4], "little", signed=True) for i in (18, 22))
        bits, compression = (int.from_bytes(data[i : i + n], "little") for i, n in ((28, 2), (30, 4)))
    mode = {1: "1", 4: "P", 8: "P"}.get(bits, "RGB")
    # a negative height means rows from the top
    return ImageInfo("BMP", width, abs(height), mode, cost="bmp" if compression in _BMP_UNCOMPRESSED else "interpreted")


def read_ppm(data: bytes) -> ImageInfo:
    """The header of a PBM, PGM or PPM, plain or raw."""
    kind = data[1:2]
    fields, position = [], 2
    for _ in range(2 if kind in b"14" else 3):
        match = _TOKEN.match(data, position, position + 4096)
        if match is None:
            raise undecodable("PPM header is broken")
        fields.append(int(match[1]))
        position = match.end()
    if kind in b"123" and data.count(b"#") > MAX_PLAIN_COMMENTS:
        raise undecodable(f"plain PPM has more than {MAX_PLAIN_COMMENTS} comments")
    depth = fields[2] if len(fields) == 3 else 1
    raw_in_c = kind == b"4" or (kind in b"56" and depth == 255) or (kind == b"5" and depth == 65535)
    mode = {b"1": "1", b"4": "1", b"3": "RGB", b"6": "RGB"}.get(kind, "I" if depth > 255 else "L")
    return ImageInfo("PPM", fields[0], fields[1], mode, cost="ppm" if raw_in_c else "interpreted")
