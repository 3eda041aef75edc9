"""The errors of a client: one class for each thing that a caller would do about it, by the server's `code`."""

import os
from typing import NamedTuple, NoReturn


class MilkweedError(Exception):
    """Anything that kept an image from its answer.

    Args:
        code: the server's word for it, or the client's: `unreadable`, `no_answer`, `bad_answer`, `deadline`,
            `other_process`.
        message: one line.
        status: the HTTP status; None where the client found the error.
        request_id: the request's id in the server's log; empty where there is none.
        retry_after: seconds after which the server would like to be asked again.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int | None = None,
        request_id: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status
        self.request_id = request_id
        self.retry_after = retry_after


class BadRequest(MilkweedError):
    """The request itself is wrong: a parameter, a form, too many images."""


class ImageRefused(MilkweedError):
    """This image will never get an answer: it is unreadable, too large, of no accepted format, or damaged."""


class Unauthorized(MilkweedError):
    """The server asks for an API key, and this is none of its keys."""


class UnknownModel(MilkweedError):
    """No such model or head, or no milkweed at this path."""


class Unavailable(MilkweedError):
    """The server takes no more at the moment; the client tried again as long as there was time."""


class RateLimited(Unavailable):
    """This key has asked for more than it may."""


class DeadlineExceeded(MilkweedError):
    """No answer in time."""


class ServerFault(MilkweedError):
    """The server failed; its log has more, under the request id."""


class NoAnswer(MilkweedError):
    """No server is there, or it left before it answered."""


class BadAnswer(MilkweedError):
    """Something answered, but not as milkweed does."""


class ErrorCode(NamedTuple):
    """The HTTP status of a code, and the class of its error."""

    status: int
    error: type[MilkweedError]


ERROR_CODES: dict[str, ErrorCode] = {
    "bad_request": ErrorCode(400, BadRequest),
    "empty": ErrorCode(400, ImageRefused),
    "no_embedding": ErrorCode(400, BadRequest),
    "no_classes": ErrorCode(400, BadRequest),
    "url_not_allowed": ErrorCode(400, ImageRefused),
    "unauthorized": ErrorCode(401, Unauthorized),
    "unknown_model": ErrorCode(404, UnknownModel),
    "unknown_head": ErrorCode(404, UnknownModel),
    "not_found": ErrorCode(404, UnknownModel),
    "method_not_allowed": ErrorCode(405, BadRequest),
    "request_timeout": ErrorCode(408, DeadlineExceeded),
    "conflict": ErrorCode(409, BadRequest),
    "not_yet": ErrorCode(409, BadRequest),
    "too_large": ErrorCode(413, ImageRefused),
    "too_many_pixels": ErrorCode(413, ImageRefused),
    "too_many_images": ErrorCode(413, BadRequest),
    "unsupported_format": ErrorCode(415, ImageRefused),
    "undecodable": ErrorCode(422, ImageRefused),
    "rate_limited": ErrorCode(429, RateLimited),
    "headers_too_large": ErrorCode(431, BadRequest),
    "internal": ErrorCode(500, ServerFault),
    "fetch_failed": ErrorCode(502, ImageRefused),
    "draining": ErrorCode(503, Unavailable),
    "not_ready": ErrorCode(503, Unavailable),
    "overloaded": ErrorCode(503, Unavailable),
    "deadline": ErrorCode(504, DeadlineExceeded),
}
"""Every code that a server sends (docs/http.md)."""

TOO_MUCH = frozenset({"too_large", "too_many_images"})
"""The codes of requests whose halves may be accepted."""


def make_error(
    code: str, message: str, *, status: int | None = None, request_id: str = "", retry_after: float | None = None
) -> MilkweedError:
    """Make the error of a code, with the status of the code; an unknown code makes one of the base class."""
    kind = ERROR_CODES.get(code)
    if kind is not None:
        status = kind.status
    error = MilkweedError if kind is None else kind.error
    return error(code, message, status=status, request_id=request_id, retry_after=retry_after)


def unreadable(message: str) -> MilkweedError:
    """Make the error of an image that the client cannot read."""
    return ImageRefused("unreadable", f"cannot be read: {message}")


def check_process(pid: int, what: str) -> None:
    """Raises MilkweedError where this process is another one than `what` was made in, which would never answer."""
    if pid != os.getpid():
        raise MilkweedError("other_process", f"{what} was made in another process: make it in this one, after the fork")


def refuse_pickle(made: object) -> NoReturn:
    """Be the `__reduce__` of what belongs to a process."""
    raise TypeError(f"a {type(made).__name__} cannot be sent to another process: make one there")
