"""Splits a multipart/form-data body that is wholly in memory into its file parts (RFC 7578, RFC 2046 5.1).

A part's data may hold anything but the delimiter, so it is enough to find the delimiter. That runs at memory speed; a
parser that looks at each byte costs as much as decoding a small photograph.
"""

import re
from collections.abc import Iterator

from ...inference.yielding import give_way
from ..errors import ServiceError
from .parameters import PARAMETERS

MAX_PART_HEADER_BYTES = 16_384

# A search holds Python's lock; so many bytes take less than a millisecond.
SEARCHED_BYTES = 1 << 20

MAX_FIELDS = 64
"""So many parts of a body may be something other than files, and have MAX_VALUE_BYTES each."""

MAX_VALUE_BYTES = 1024
MAX_FILES = 4096  # no setting allows more images of a request

_BOUNDARY = re.compile(rb';\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70})(?=[\s;]|$))', re.IGNORECASE)
_PARAMETER = re.compile(rb';\s*([\w*]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^;]*)')
_FILE_TYPES = (b"image/", b"application/octet-stream", b"application/x-npy")


def boundary_of(content_type: bytes) -> bytes:
    """The boundary that a Content-Type names. Raises ServiceError `bad_request` when there is none."""
    match = _BOUNDARY.search(content_type)
    if match is None:
        raise _broken("Content-Type names no boundary of 1 to 70 characters")
    return match[1] or match[2]


def form_parts(body: bytes, boundary: bytes) -> tuple[list[slice], list[tuple[str, str]]]:
    """Where the files of a form lie, those with a filename or a type that is not text, up to one more than `MAX_FILES`;
    and its other parts by name. Raises ServiceError `bad_request` for a body that is broken off or malformed."""
    files: list[slice] = []
    fields: list[tuple[str, str]] = []
    for place, (start, end) in enumerate(_spans(body, b"--" + boundary)):
        if place - len(files) > MAX_FIELDS:
            raise _broken(f"more than {MAX_FIELDS} parts are no files")
        if end <= start:
            continue  # an empty part
        header_end = body.find(b"\r\n\r\n", start - 2, min(end, start + MAX_PART_HEADER_BYTES))
        if header_end < 0:
            raise _broken(f"part {place} has no end of headers within {MAX_PART_HEADER_BYTES} bytes")
        name, is_file = _name(body[start:header_end])
        data = slice(header_end + 4, end)
        if is_file and name not in PARAMETERS:
            files.append(data)
            if len(files) > MAX_FILES:
                break
        elif is_file or end - data.start > MAX_VALUE_BYTES:
            raise _broken(f"field {name[:40]!r} is a file or has over {MAX_VALUE_BYTES} bytes")
        elif name or data.start < end:
            fields.append((name, body[data].decode("utf-8", "replace")))
    return files, fields


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


def _find(body: bytes, pattern: bytes, start: int) -> int:
    """Find what `bytes.find` would, in short steps so that other threads can run between them."""
    for here in range(start, len(body), SEARCHED_BYTES):
        if here > start:
            give_way()
        position = body.find(pattern, here, here + SEARCHED_BYTES + len(pattern) - 1)
        if position >= 0:
            return position
    return -1


def _name(headers: bytes) -> tuple[str, bool]:
    """The name of a part, and whether it is a file."""
    values = {
        name.strip().lower(): value for name, _, value in (line.partition(b":") for line in headers.split(b"\r\n"))
    }
    parameters = {key.lower(): text for key, text in _PARAMETER.findall(values.get(b"content-disposition", b""))}
    is_file = values.get(b"content-type", b"").strip().lower().startswith(_FILE_TYPES)
    name = parameters.get(b"name", b"").strip(b' \t"').decode("utf-8", "replace")
    return name, is_file or b"filename" in parameters or b"filename*" in parameters


def _broken(what: str) -> ServiceError:
    return ServiceError("bad_request", f"malformed multipart: {what}")
