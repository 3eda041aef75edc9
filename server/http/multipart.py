"""Splits a multipart/form-data body that is wholly in memory into its file parts (RFC 7578, RFC 2046 5.1).

A part's data may hold anything but the delimiter, so it is enough to find the delimiter. That runs at memory speed; a
parser that looks at each byte costs as much as decoding a small photograph.
"""

import re
from collections.abc import Iterator

from ...inference.yielding import give_way
from ..errors import ServiceError

MAX_PART_HEADER_BYTES = 16_384

# A search holds Python's lock; so many bytes take less than a millisecond.
SEARCHED_BYTES = 1 << 20

MAX_FIELDS = 64
"""So many parts of a body may be something other than files; they are not read."""

_BOUNDARY = re.compile(rb';\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70})(?=[\s;]|$))', re.IGNORECASE)
_FILENAME = re.compile(rb";\s*filename\*?=", re.IGNORECASE)


def boundary_of(content_type: bytes) -> bytes:
    """The boundary that a Content-Type names. Raises ServiceError `bad_request` when there is none."""
    match = _BOUNDARY.search(content_type)
    if match is None:
        raise _broken("Content-Type names no boundary of 1 to 70 characters")
    return match[1] or match[2]


def file_parts(body: bytes, boundary: bytes, *, max_parts: int) -> list[bytes]:
    """The data of the file parts, in order: those with a file name, or with a type that is not text. `max_parts`: more
    file parts than this are refused. Raises ServiceError `bad_request` for a body that is broken off, malformed, or has
    more than `MAX_FIELDS` other parts; `too_many_images`."""
    files: list[bytes] = []
    for parts, (start, end) in enumerate(_spans(body, b"--" + boundary)):
        if parts - len(files) > MAX_FIELDS:
            raise _broken(f"more than {MAX_FIELDS} parts are no files")
        if end < start or body.startswith(b"\r\n", start):
            continue  # an empty part, or one without headers: a text field without a name
        header_end = body.find(b"\r\n\r\n", start, min(end, start + MAX_PART_HEADER_BYTES))
        if header_end < 0:
            raise _broken(f"part {len(files)} has no end of headers within {MAX_PART_HEADER_BYTES} bytes")
        if not _is_file(body[start:header_end]):
            continue
        if len(files) == max_parts:
            raise ServiceError("too_many_images", f"the request has more images than the limit of {max_parts}")
        files.append(body[header_end + 4 : end])
    return files


def _spans(body: bytes, delimiter: bytes) -> Iterator[tuple[int, int]]:
    """Yield where each part's headers begin and its data ends; an empty part ends before it begins."""
    here = 0 if body.startswith(delimiter) else _find(body, b"\r\n" + delimiter, 0) + 2
    if here == 1:
        raise _broken("the body has no boundary")
    while True:
        here += len(delimiter)
        if body.startswith(b"--", here):
            return
        line_end = body.find(b"\r\n", here, here + 1024)
        if line_end < 0 or body[here:line_end].strip(b" \t"):
            raise _broken("a boundary is not at the end of its line")
        # The line end that closes a boundary may also open the next one: an empty part.
        following = _find(body, b"\r\n" + delimiter, line_end)
        if following < 0:
            raise _broken("the body ends inside a part; the closing boundary is missing")
        yield line_end + 2, following
        here = following + 2


def _find(body: bytes, wanted: bytes, start: int) -> int:
    """Find what `bytes.find` would, in short steps so that other threads can run between them."""
    for here in range(start, len(body), SEARCHED_BYTES):
        if here > start:
            give_way()
        found = body.find(wanted, here, here + SEARCHED_BYTES + len(wanted) - 1)
        if found >= 0:
            return found
    return -1


def _is_file(headers: bytes) -> bool:
    disposition = content_type = b""
    for line in headers.split(b"\r\n"):
        name, _, value = line.partition(b":")
        name = name.strip().lower()
        if name == b"content-disposition":
            disposition = value
        elif name == b"content-type":
            content_type = value.strip().lower()
    if _FILENAME.search(disposition):
        return True
    return content_type.startswith((b"image/", b"application/octet-stream", b"application/x-npy"))


def _broken(what: str) -> ServiceError:
    return ServiceError("bad_request", f"malformed multipart: {what}")
