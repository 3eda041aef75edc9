"""Entry point of the `milkweed` command: runs it, turns what goes wrong into one line and an exit code."""

import contextlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType

DEBUG = "--debug"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 done, 1 failed, 2 wrong usage, 130 interrupted.

    Args:
        argv: without the program's name; that of the process when None.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    with _stoppable() if _command(args) == "serve" else contextlib.nullcontext():
        return _main(args)


def _main(args: list[str]) -> int:
    # --debug may stand anywhere: who adds it does so to the end of the line that failed.
    debug = DEBUG in args
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: what a locale cannot show ends no command
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
def _stoppable() -> Iterator[None]:
    """End with 0, as a server does that has served, at a signal that comes before the server handles it itself.

    The imports take seconds, and to process 1 of a container the kernel sends no signal that it does not handle.
    """

    def end(number: int, frame: FrameType | None) -> None:
        os._exit(0)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _command(args: Sequence[str]) -> str:
    return next((arg for arg in args if not arg.startswith("-")), "")


def _run(args: list[str]) -> int:
    # Here, so that who interrupts while they are imported sees no traceback either.
    import typer

    from .app import build_app

    command = typer.main.get_command(build_app(_command(args)))
    try:
        code = command.main(args=args, prog_name="milkweed", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except SystemExit as exit:  # click's own way out where a pipe is broken
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
    """Whoever read the output stopped (`| head`): nothing to say, and nobody to say it to at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
