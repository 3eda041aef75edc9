"""The domain errors of `models`: each is one line that names the file or key, the value and the limit."""


class BundleError(ValueError):
    """A bundle that cannot be read or written.

    Its text can be logged and sent as UTF-8 whatever the folder's name: bytes that are not UTF-8 read as `\\xff` there.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message.encode("utf-8", "backslashreplace").decode())


class CheckpointError(ValueError):
    """A checkpoint that cannot be read or does not fit; `details` holds further lines for a person."""

    def __init__(self, message: str, details: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.details = details


class ExportError(ValueError):
    """A model that cannot be exported, or an exported one that cannot be run or computes something else."""


def quoted(value: object, limit: int = 80) -> str:
    """`value` as repr on one line, cut to `limit` characters: safe to put in a message."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def first_line(error: BaseException) -> str:
    """What an error of another library says first, or its name where it says nothing."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
