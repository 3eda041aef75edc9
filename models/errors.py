"""The errors of `models`, each one line that names the file or key, the value and the limit."""


class BundleError(ValueError):
    """A bundle cannot be read or written.

    The message is valid UTF-8 whatever the folder's name: other bytes are written as `\\xff`.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message.encode("utf-8", "backslashreplace").decode())


class CheckpointError(ValueError):
    """A checkpoint cannot be read or does not fit; `details` holds further lines for a person."""

    def __init__(self, message: str, details: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.details = details


class ExportError(ValueError):
    """A model cannot be exported, or the exported model cannot run or computes something else."""


def stand_in(head: bytes) -> str | None:
    """What lies in the place of a file that was not fetched, by its first bytes; None where it may be the file."""
    if head.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer, not the file: git lfs pull fetches it"
    if head.startswith(b"/annex/objects/"):
        return "a git-annex pointer, not the file: git annex get fetches it"
    html = head[:14].lower().startswith((b"<!doctype html", b"<html"))
    return "an HTML page, not the file: the download went wrong" if html else None


def quoted(value: object, limit: int = 80) -> str:
    """The repr of `value` on one line, cut to `limit` characters, which is safe in a message."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def printable(text: str) -> str:
    """Escape the characters that a terminal might obey or cannot show."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def first_line(error: BaseException) -> str:
    """The first line that says something in an error of another library, or its type where there is none.

    OpenVINO's begin with the places of its source that the exception went through.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if not line.startswith("Exception from ")), type(error).__name__)
