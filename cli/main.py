"""The entry point of the `milkweed` command; it turns every error into one line and an exit code."""

import contextlib
import gc
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType

DEBUG = "--debug"

SLOW = {*("bench", "classify", "compress", "convert", "densify", "doctor", "embed"), *("evaluate", "export", "import")}
SLOW |= {"inspect", "serve", "train"}
"""Commands that take long, or import what takes long, before they have anything to say."""

QUIET_SECONDS = 0.7


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted.

    Args:
        argv: the arguments without the program's name; None takes those of the process.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    with _starting() if _command(args) == "serve" else contextlib.nullcontext(), _told(_command(args), args):
        return _main(args)


@contextlib.contextmanager
def _told(command: str, args: Sequence[str]) -> Iterator[None]:
    """Say on a terminal, within a second, that a slow command is at work: PyTorch alone takes seconds to import."""
    if command not in SLOW or not sys.stderr.isatty() or not {"-h", "--help"}.isdisjoint(args):
        yield
        return
    line = f"milkweed: {command} is starting"
    timer = threading.Timer(QUIET_SECONDS, print, [line], {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _main(args: list[str]) -> int:
    # --debug may stand anywhere: people add it to the end of the line that failed.
    debug = DEBUG in args
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        sys.stdout.reconfigure(
            errors="backslashreplace"
        )  # as stderr does: no command fails because the locale cannot show a character
    try:
        code = _run([arg for arg in args if arg != DEBUG])
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        return _reader_gone()
    except KeyboardInterrupt:
        from .errors import INTERRUPTED

        return INTERRUPTED
    except Exception as error:
        return _fail(error, debug)


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """Exit with 0, as a server does after it has served, at a signal that comes before the server handles it itself.

    The imports take seconds, and the kernel sends process 1 of a container no signal that the process does not handle.
    Nor is garbage collected before `serve` has imported all that it needs: imports make hardly any, and the collector
    would walk what they bring again and again.
    """

    def end(number: int, frame: FrameType | None) -> None:
        os._exit(0)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        for number, handler in before.items():
            signal.signal(number, handler)


def _command(args: Sequence[str]) -> str:
    """The command that will run; another argument, as the --help of all commands, where none will."""
    return next((arg for arg in args if arg != DEBUG), "")


def _run(args: list[str]) -> int:
    # Imported here, so that an interrupt during the import shows no traceback either.
    import typer

    from .app import build_app

    command = typer.main.get_command(build_app(_command(args)))
    try:
        code = command.main(args=args, prog_name="milkweed", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except SystemExit as exit:  # click exits like this where a pipe is broken
        if exit.code:
            raise BrokenPipeError from exit
        return 0
    return code if isinstance(code, int) else 0


def _fail(error: Exception, debug: bool) -> int:
    from .errors import details, explain

    if debug:
        traceback.print_exception(error)
        for line in details(error):
            print(f"milkweed: {line}", file=sys.stderr)
    message, code = explain(error)
    print(f"milkweed: error: {message}", file=sys.stderr, flush=True)
    return code


def _reader_gone() -> int:
    """End quietly after the reader of the output has gone (`| head`); the flush at exit goes to /dev/null."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
