"""What may go wrong, one class for what a caller would do about it, by the server's `code`."""

from typing import NamedTuple


class MilkweedError(Exception):
    """Anything that kept an image from its answer.

    Args:
        code: the server's word for it, or `unreadable`, `no_answer`, `bad_answer`, `deadline` of this side.
        message: one line.
        status: of HTTP; None where this side found it.
        request_id: finds the request in the server's log; empty where there is none.
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
    """The question cannot be asked like this: a parameter, a form, too many images."""


class ImageRefused(MilkweedError):
    """This image gets no answer, whoever asks again: unreadable, too large, of no accepted format, damaged."""


class Unauthorized(MilkweedError):
    """The server asks for an API key, and this is none of its keys."""


class UnknownModel(MilkweedError):
    """No such model, or no milkweed at this path."""


class Unavailable(MilkweedError):
    """The server takes no more at the moment; it was asked again as long as there was time."""


class RateLimited(Unavailable):
    """This key has asked for more than it may."""


class DeadlineExceeded(MilkweedError):
    """No answer in time."""


class ServerFault(MilkweedError):
    """A fault of the server's: its log has more, under the request id."""


class NoAnswer(MilkweedError):
    """No server there, or it left before it answered."""


class BadAnswer(MilkweedError):
    """Something answered, but not as milkweed does."""


class Kind(NamedTuple):
    """The HTTP status of a code, and the class that it raises."""

    status: int
    error: type[MilkweedError]


KINDS: dict[str, Kind] = {
    "bad_request": Kind(400, BadRequest),
    "empty": Kind(400, ImageRefused),
    "unauthorized": Kind(401, Unauthorized),
    "unknown_model": Kind(404, UnknownModel),
    "not_found": Kind(404, UnknownModel),
    "method_not_allowed": Kind(405, BadRequest),
    "request_timeout": Kind(408, DeadlineExceeded),
    "conflict": Kind(409, BadRequest),
    "too_large": Kind(413, ImageRefused),
    "too_many_pixels": Kind(413, ImageRefused),
    "too_many_images": Kind(413, BadRequest),
    "unsupported_format": Kind(415, ImageRefused),
    "undecodable": Kind(422, ImageRefused),
    "rate_limited": Kind(429, RateLimited),
    "headers_too_large": Kind(431, BadRequest),
    "internal": Kind(500, ServerFault),
    "draining": Kind(503, Unavailable),
    "not_ready": Kind(503, Unavailable),
    "overloaded": Kind(503, Unavailable),
    "deadline": Kind(504, DeadlineExceeded),
}
"""Every code of the server's (docs/http.md)."""

TOO_MUCH = frozenset({"too_large", "too_many_images"})
"""Codes of a request that may pass in halves."""


def make_error(
    code: str, message: str, *, status: int | None = None, request_id: str = "", retry_after: float | None = None
) -> MilkweedError:
    """The error of a code, with its own status where it has one; of an unknown code, the base class."""
    kind = KINDS.get(code)
    if kind is not None:
        status = kind.status
    error = MilkweedError if kind is None else kind.error
    return error(code, message, status=status, request_id=request_id, retry_after=retry_after)


def unreadable(message: str) -> MilkweedError:
    """An image that this side cannot read."""
    return ImageRefused("unreadable", f"cannot be read: {message}")
