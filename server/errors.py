"""The only place that knows HTTP statuses: every error code, its status, and the metric's word for it."""

import json
from typing import NamedTuple


class ErrorKind(NamedTuple):
    """What a code means to a client (`status`) and to an operator (`reason`, a label of a metric)."""

    status: int
    reason: str


ERROR_CODES: dict[str, ErrorKind] = {
    "bad_request": ErrorKind(400, "bad_request"),
    "empty": ErrorKind(400, "empty"),
    "unauthorized": ErrorKind(401, "unauthorized"),
    "unknown_model": ErrorKind(404, "unknown_model"),
    "not_found": ErrorKind(404, "not_found"),
    "method_not_allowed": ErrorKind(405, "method_not_allowed"),
    "request_timeout": ErrorKind(408, "request_timeout"),
    "conflict": ErrorKind(409, "conflict"),
    "too_large": ErrorKind(413, "body_too_large"),
    "too_many_pixels": ErrorKind(413, "pixels"),
    "too_many_images": ErrorKind(413, "too_many_images"),
    "unsupported_format": ErrorKind(415, "unsupported_media"),
    "undecodable": ErrorKind(422, "undecodable"),
    "rate_limited": ErrorKind(429, "rate_limited"),
    "headers_too_large": ErrorKind(431, "headers_too_large"),
    "internal": ErrorKind(500, "internal"),
    "draining": ErrorKind(503, "draining"),
    "not_ready": ErrorKind(503, "not_ready"),
    "overloaded": ErrorKind(503, "queue_full"),
    "deadline": ErrorKind(504, "deadline"),
}

INTERNAL_MESSAGE = "internal error; the log has the details under this request id"


class ServiceError(Exception):
    """A refusal or failure that a client may see.

    Args:
        code: one of `ERROR_CODES`.
        message: one line that names the value and the limit, never holds input bytes.
        retry_after_seconds: when to come back; sent as `Retry-After`.
        close: answer, then close the connection, because unread body may follow.
    """

    def __init__(self, code: str, message: str, *, retry_after_seconds: int | None = None, close: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_seconds = retry_after_seconds
        self.close = close

    @property
    def status(self) -> int:
        """The HTTP status of the code."""
        return status_of(self.code)


class ClientDisconnected(Exception):
    """The client closed its connection; nobody is there to answer. `stage` says how far the request was."""

    def __init__(self, stage: str) -> None:
        super().__init__(f"client disconnected while the request was in stage {stage}")
        self.stage = stage


def internal_error() -> ServiceError:
    """What a client learns about a fault of ours: the request id, nothing else."""
    return ServiceError("internal", INTERNAL_MESSAGE)


def status_of(code: str) -> int:
    """The HTTP status of an error code; a code that nobody registered is a fault of ours: 500."""
    kind = ERROR_CODES.get(code)
    return kind.status if kind else 500


def error_body(code: str, message: str, request_id: str) -> bytes:
    """The one shape that every error has outside `results`."""
    error = {"code": code, "message": message}
    return json.dumps({"error": error, "request_id": request_id}, ensure_ascii=False).encode()


def error_headers(error: ServiceError) -> list[tuple[bytes, bytes]]:
    """The headers that belong to the error itself."""
    headers = []
    if error.code == "unauthorized":
        headers.append((b"www-authenticate", b'Bearer realm="milkweed"'))
    if error.retry_after_seconds is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after_seconds))
    if error.close:
        headers.append((b"connection", b"close"))
    return headers
