"""Checks the head of a request: its size, its target, its Host (RFC 9110 and 9112)."""

import re
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from ...errors import ServiceError

Headers = list[tuple[bytes, bytes]]

# Headers that say one thing and that we read: of two, an intermediary may have looked at the other one.
_SINGLE = frozenset({b"host", b"content-type", b"authorization", b"x-api-key", b"x-request-timeout-ms", b"x-priority"})

# The name of a host has 253 bytes at most, `:` and a port 6; a longer value is not even parsed.
MAX_HOST_BYTES = 260

_PORT = rb"(?::(?:[0-5]?\d{1,4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5])?)?"
_NAME = rb"(?:[A-Za-z0-9._~!$&'()*+;=-]|%[0-9A-Fa-f]{2})+"  # no comma: that is two hosts made one on the way
_AUTHORITY = rb"(?:" + _NAME + rb"|\[[0-9A-Fa-f:.]{2,45}\])" + _PORT
_HOST = re.compile(_AUTHORITY + rb"[ \t]*")
_ABSOLUTE = re.compile(rb"https?://(" + _AUTHORITY + rb")([/?].*)?", re.IGNORECASE)
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def head_too_large(limit: int) -> ServiceError:
    """The error of a head that is longer than the limit."""
    return ServiceError("headers_too_large", f"target and headers have more bytes than the limit of {limit}")


def check_headers(target: bytes, headers: Headers, version: str, max_bytes: int) -> None:
    """Check the size of a head, and that it names one host. `version`: HTTP's; 1.0 may name none. Raises ServiceError
    `headers_too_large`, `bad_request`."""
    size = len(target)
    seen = set()
    for name, value in headers:
        size += len(name) + len(value)
        if name in _SINGLE:
            if name in seen:
                raise ServiceError("bad_request", f"a request has one {name.decode()} header; this one has more")
            seen.add(name)
        if name == b"host" and (len(value) > MAX_HOST_BYTES or not _is_host(value)):
            raise ServiceError("bad_request", "Host is not the name or address of a host, with or without a port")
    if size > max_bytes:
        raise head_too_large(max_bytes)
    if b"host" not in seen and version != "1.0":
        raise ServiceError("bad_request", "a request has one Host header; this one has none")


def read_target(method: bytes, target: bytes) -> tuple[bytes, bytes | None]:
    """Read the target of a request. Returns its path and query, or `*`; and the host, where the target and not the
    header names it. Raises ServiceError `bad_request`."""
    host = None
    if not target.startswith(b"/"):
        if target != b"*":
            url = _ABSOLUTE.fullmatch(target)
            if url is None:
                raise ServiceError(
                    "bad_request", "the target is not a path, nor an http or https URL with a host alone"
                )
            host, path = url.groups(default=b"")
            # A URL without a path is the whole server to OPTIONS.
            target = path if path[:1] == b"/" else b"*" if method == b"OPTIONS" and not path else b"/" + path
        if target == b"*" and method != b"OPTIONS":
            raise ServiceError("bad_request", "the target * is for OPTIONS alone")
    if b"#" in target:
        raise ServiceError("bad_request", "the target has a #, which is never sent")
    if b"%" in target:
        _check_escapes(target)
    return target, host


@lru_cache(maxsize=256)  # a client says the same one each time
def _is_host(value: bytes) -> bool:
    return _HOST.fullmatch(value) is not None


def _check_escapes(target: bytes) -> None:
    """Check that the decoded target is UTF-8 without control characters, so that no layer behind has to."""
    try:
        text = unquote_to_bytes(target).decode()
    except UnicodeDecodeError:
        text = "\0"
    if _BAD_ESCAPE.search(target) or _CONTROL.search(text):
        raise ServiceError("bad_request", "the target has escapes (%) that are not UTF-8 text on one line")
