"""The command `milkweed bench`, whose code is no part of an installed package: it is run from a checkout."""

from typing import Annotated

import typer

from .errors import FAILED, CommandError
from .help import page

MISSING = "the benchmarks are in a checkout of milkweed only: `make install-bench` there"


def add_bench(app: typer.Typer) -> None:
    """Add the group of commands; where they are not installed, one command that says how to get them."""
    try:
        from ..bench.commands.app import app as bench
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("milkweed.bench"):
            raise
        unknown = {"ignore_unknown_options": True}  # they belong to commands that are not there
        app.command("bench", cls=page(), context_settings=unknown)(_missing)
    else:
        app.add_typer(bench, name="bench")


def _missing(
    arguments: Annotated[list[str] | None, typer.Argument(metavar="COMMAND", help="What to measure.")] = None,
) -> None:
    """Measure this machine (needs a checkout of milkweed).

    The wheel and the image hold what serves and makes models. What measures is run from a checkout, installed with
    `make install-bench`.

    \b
    Example:
      milkweed bench model
    """
    raise CommandError(MISSING, FAILED)
