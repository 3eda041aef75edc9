"""The errors of the loaders: why an image was refused, as a code and one line for people, and `LoaderError`."""

from typing import Literal, TypeVar, get_args

Error = TypeVar("Error", bound=BaseException)

InputCode = Literal["empty", "unsupported_format", "too_large", "too_many_pixels", "undecodable"]
CODES: tuple[str, ...] = get_args(InputCode)


class InputError(ValueError):
    """An image that cannot be answered.

    Args:
        code: one of `CODES`; the server maps it to a status.
        message: one line with the bad value and the limit; never holds image bytes.
    """

    def __init__(self, code: InputCode, message: str) -> None:
        super().__init__(message)
        self.code: InputCode = code
        self.message = message


class DecoderLostError(InputError):
    """An image whose decoder was lost, twice, through no fault of the image: another time it may be decoded."""


class LoaderError(ValueError):
    """A loader cannot be made here; says what is missing."""


def without_frames(error: Error) -> Error:
    """Return an error that is kept, without the frames that led to it: they hold the image or the body, and where one
    of them holds the error, all of it would wait for the collector."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def undecodable(what: str) -> InputError:
    """The error of a body whose format is accepted but whose content is broken."""
    return InputError("undecodable", what)


def unsupported(what: str) -> InputError:
    """The error of a body that is not an accepted image."""
    return InputError("unsupported_format", what)
