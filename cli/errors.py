"""CommandError, which a command raises when it cannot do what was asked; any error becomes one line here."""

import typer

from ..kernels.installation import install_command
from ..models.errors import printable
from .replaced_options import RENAMED, REPLACED

FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130

_USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
"""The UsageError of click, wherever this version of typer keeps its click."""


NEEDS_TORCH = {"torch": "PyTorch", "timm": "timm", "safetensors": "safetensors", "huggingface_hub": "huggingface-hub"}
"""Packages of the extra `torch`, which serving does without and what makes models needs, and their names in words."""


class CommandError(Exception):
    """Ends the command with one line and an exit code.

    Args:
        message: one line that names the argument, the value and the limit.
        exit_code: FAILED, or WRONG_USAGE where the command line alone is at fault.
    """

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def explain(error: Exception) -> tuple[str, int]:
    """Return the one line that says what went wrong, and the exit code."""
    line, code = _explained(error)
    needs = ": PyTorch needs a writable one, as /tmp, or the one that TMPDIR names"
    return line + (needs if "No usable temporary directory" in line else ""), code


def _explained(error: Exception) -> tuple[str, int]:
    if isinstance(error, CommandError):
        return one_line(str(error)), error.exit_code
    if isinstance(error, _USAGE_ERROR):
        return one_line(_usage(error)), WRONG_USAGE
    from ..server.config.sources import SettingsError

    if isinstance(error, SettingsError):
        return one_line(str(error)), WRONG_USAGE
    if isinstance(error, ModuleNotFoundError) and error.name in NEEDS_TORCH:
        return f"this needs {NEEDS_TORCH[error.name]}: {install_command('models')}", FAILED
    if isinstance(error, OSError) and error.strerror:
        return one_line(f"{error.filename}: {error.strerror}" if error.filename else error.strerror), FAILED
    if isinstance(error, ValueError | OSError | ImportError) and str(error):
        return one_line(str(error)) + _more(error), FAILED
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return one_line(f"internal error, {what} (--debug shows the traceback)"), FAILED


def one_line(text: str) -> str:
    """Put `text` on one line that is safe to print on a terminal: names of files may hold anything."""
    return printable(" ".join(text.split()))


def details(error: Exception) -> tuple[str, ...]:
    """Return the further lines that some errors hold; --debug shows them."""
    lines = getattr(error, "details", ())
    return tuple(one_line(line) for line in lines) if isinstance(lines, tuple) else ()


def _more(error: Exception) -> str:
    return " (--debug says more)" if details(error) else ""


def _usage(error: Exception) -> str:
    """Return click's message without its capital letter and full stop, and where to look."""
    message = str(error.format_message()) if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "milkweed"
    option = getattr(error, "option_name", "")
    replaced = REPLACED if command.split()[-1] == "compress" else RENAMED
    if option in replaced:
        message = f"{option} {replaced[option]}"
    message = message.rstrip(".")
    return f"{message[:1].lower()}{message[1:]}; see {command} --help"
