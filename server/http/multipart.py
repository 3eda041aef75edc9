"""Splits a multipart/form-data body that is wholly in memory into its file parts (RFC 7578, RFC 2046 5.1).

A part's data may hold anything but the delimiter, so it is enough to find the delimiter. That runs at memory speed; a
parser that looks at each byte costs as much as decoding a small photograph.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from ...inference.yielding import give_way
from ..errors import ServiceError
from .parameters import MAX_VALUE_BYTES, PARAMETERS

MAX_PART_HEADER_BYTES = 16_384

# A search holds Python's lock; so many bytes take less than a millisecond.
SEARCHED_BYTES = 1 << 20

MAX_FIELDS = 64
"""So many parts of a body may be something other than files."""

MAX_FILES = 4096
"""No setting allows more images of a request."""

_BOUNDARY = re.compile(rb';\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70})(?=[\s;]|$))', re.IGNORECASE)
_PARAMETER = re.compile(rb';\s*([\w*]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^;]*)')
_FILE_TYPES = (b"image/", b"application/octet-stream", b"application/x-npy")


class FormParts(NamedTuple):
    """Where the files of a form lie in its body, up to one more than `MAX_FILES`, and its other parts by name."""

    files: list[slice]
    fields: list[tuple[str, str]]


def boundary_of(content_type: bytes) -> bytes:
    """The boundary that a Content-Type names. Raises ServiceError `bad_request` when there is none."""
    match = _BOUNDARY.search(content_type)
    if match is None:
        raise _broken("Content-Type names no boundary of 1 to 70 characters")
    return match[1] or match[2]


def form_parts(body: bytes, boundary: bytes) -> FormParts:
    """Find the parts of a form. Those with a filename, or with a type that is not text, are files. Raises ServiceError
    `bad_request` for a body that is broken off, malformed, or has more than `MAX_FIELDS` other parts."""
    files: list[slice] = []
    fields: list[tuple[str, str]] = []
    for place, (start, end) in enumerate(_spans(body, b"--" + boundary)):
        if place - len(files) > MAX_FIELDS:
            raise _broken(f"more than {MAX_FIELDS} parts are no files")
        if end < start:
            continue  # an empty part
        bare = body.startswith(b"\r\n", start)  # without headers
        header_end = start - 2 if bare else body.find(b"\r\n\r\n", start, min(end, start + MAX_PART_HEADER_BYTES))
        if header_end < 0:
            raise _broken(f"part {place} has no end of headers within {MAX_PART_HEADER_BYTES} bytes")
        name, is_file = _name(body[start:header_end])
        data = slice(header_end + 4, end)
        if is_file and name not in PARAMETERS:
            files.append(data)
            if len(files) > MAX_FILES:
                break
        elif is_file or end - data.start > MAX_VALUE_BYTES:
            wrong = f"field {name[:40]!r} is a file or has over {MAX_VALUE_BYTES} bytes: expected text"
            raise ServiceError("bad_request", wrong)
        elif name or data.start < end:
            fields.append((name, body[data].decode("utf-8", "replace")))
    return FormParts(files, fields)


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


def _name(headers: bytes) -> tuple[str, bool]:
    """The name of a part, and whether it is a file."""
    disposition: dict[bytes, bytes] = {}
    content_type = b""
    for line in headers.split(b"\r\n"):
        header, _, value = line.partition(b":")
        header = header.strip().lower()
        if header == b"content-disposition":
            disposition = {key.lower(): text for key, text in _PARAMETER.findall(value)}
        elif header == b"content-type":
            content_type = value.strip().lower()
    is_file = not disposition.keys().isdisjoint((b"filename", b"filename*")) or content_type.startswith(_FILE_TYPES)
    return disposition.get(b"name", b"").strip(b' \t"').decode("utf-8", "replace"), is_file


def _broken(what: str) -> ServiceError:
    return ServiceError("bad_request", f"malformed multipart: {what}")
