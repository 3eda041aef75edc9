"""Defines every error code, its HTTP status and its metric label, and the shape of error answers."""

import difflib
import json
from collections.abc import Sequence
from typing import NamedTuple

from ..inference.results import INTERNAL_MESSAGE


class ErrorKind(NamedTuple):
    """What a code means to a client, `status`, and to an operator, `reason`, which is a label of a metric."""

    status: int
    reason: str


ERROR_CODES: dict[str, ErrorKind] = {
    "bad_request": ErrorKind(400, "bad_request"),
    "empty": ErrorKind(400, "empty"),
    "no_embedding": ErrorKind(400, "no_embedding"),
    "no_classes": ErrorKind(400, "no_classes"),
    "url_not_allowed": ErrorKind(400, "url_not_allowed"),
    "unauthorized": ErrorKind(401, "unauthorized"),
    "unknown_model": ErrorKind(404, "unknown_model"),
    "unknown_head": ErrorKind(404, "unknown_head"),
    "not_found": ErrorKind(404, "not_found"),
    "method_not_allowed": ErrorKind(405, "method_not_allowed"),
    "request_timeout": ErrorKind(408, "request_timeout"),
    "conflict": ErrorKind(409, "conflict"),
    "not_yet": ErrorKind(409, "not_yet"),
    "too_large": ErrorKind(413, "body_too_large"),
    "too_many_pixels": ErrorKind(413, "pixels"),
    "too_many_images": ErrorKind(413, "too_many_images"),
    "unsupported_format": ErrorKind(415, "unsupported_media"),
    "undecodable": ErrorKind(422, "undecodable"),
    "rate_limited": ErrorKind(429, "rate_limited"),
    "headers_too_large": ErrorKind(431, "headers_too_large"),
    "internal": ErrorKind(500, "internal"),
    "fetch_failed": ErrorKind(502, "fetch_failed"),
    "draining": ErrorKind(503, "draining"),
    "not_ready": ErrorKind(503, "not_ready"),
    "overloaded": ErrorKind(503, "queue_full"),
    "deadline": ErrorKind(504, "deadline"),
}


class ServiceError(Exception):
    """A refusal or failure that a client may see.

    Args:
        code: one of `ERROR_CODES`.
        message: one line that names the value and the limit, and never holds bytes of the input.
        retry_after_seconds: sent as `Retry-After`.
        close: the connection closes after the answer, because unread body may follow.
        allow: the methods that a path has, where a request's is none of them; sent as `Allow`.
    """

    def __init__(
        self, code: str, message: str, *, retry_after_seconds: int | None = None, close: bool = False, allow: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_seconds = retry_after_seconds
        self.close = close
        self.allow = allow

    @property
    def status(self) -> int:
        """The HTTP status of the code."""
        return status_of(self.code)


class ClientDisconnected(Exception):
    """The client closed its connection, so that nobody is left to answer. `stage` says how far the request was."""

    def __init__(self, stage: str) -> None:
        super().__init__(f"client disconnected while the request was in stage {stage}")
        self.stage = stage


def no_such(kind: str, name: str, known: Sequence[str]) -> ServiceError:
    """The refusal of a name that does not exist: what a request says counts, or is refused."""
    there = f"no {kind} {name[:40]!r}; there are: {', '.join(known)}"
    return ServiceError("bad_request", there + did_you_mean(name, known))


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """The end of a message about an unknown name: the nearest that exists, or nothing."""
    spelled = {word.lower(): word for word in known}
    near = difflib.get_close_matches(name[:80].lower(), spelled, 1, 0.7)
    return f"; did you mean {spelled[near[0]]}?" if near else ""


def internal_error() -> ServiceError:
    """The error for a fault of ours: it tells a client nothing but to look for the request id in the log."""
    return ServiceError("internal", INTERNAL_MESSAGE)


def status_of(code: str) -> int:
    """The HTTP status of an error code; 500 for a code that is not in `ERROR_CODES`."""
    kind = ERROR_CODES.get(code)
    return kind.status if kind else 500


def error_body(code: str, message: str, request_id: str) -> bytes:
    """The JSON body of an error answer."""
    error = {"code": code, "message": message}
    return json.dumps({"error": error, "request_id": request_id}, ensure_ascii=False).encode()


def error_headers(error: ServiceError) -> list[tuple[bytes, bytes]]:
    """The headers that an error adds to its answer."""
    headers = []
    if error.code == "unauthorized":
        headers.append((b"www-authenticate", b'Bearer realm="milkweed"'))
    if error.allow:
        headers.append((b"allow", error.allow.encode()))
    if error.retry_after_seconds is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after_seconds))
    if error.close:
        headers.append((b"connection", b"close"))
    return headers
