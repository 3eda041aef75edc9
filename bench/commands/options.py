"""Options of several commands of `milkweed bench`, and lists and pairs as they are read from the command line."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ...cli.errors import WRONG_USAGE, CommandError
from ...cli.options import number_option, split_list


def text_option(flag: str, metavar: str, help: str) -> Any:
    """An option that takes a text."""
    return typer.Option(flag, metavar=metavar, help=help)


Out = Annotated[
    Path | None,
    text_option("--out", "FILE", "File of the JSON; not given: beside --plot, else in bench/results/."),
]
BatchSizes = Annotated[str, text_option("--batch-sizes", "LIST", "Images of a batch, with commas between.")]
Threads = Annotated[int, number_option("--threads", "Threads of torch that compute one batch.")]


def chosen(flag: str, text: str, known: tuple[str, ...]) -> list[str]:
    """The parts of a list, each of which must be known.

    Raises:
        Failure: one that is not known, or none.
    """
    found = split_list(text)
    if not found or set(found) - set(known):
        raise CommandError(f"{flag} {text}: expected some of {', '.join(known)}", WRONG_USAGE)
    return found


def numbers(flag: str, text: str | None) -> list[float]:
    """The numbers of a list, all above 0.

    Raises:
        Failure: one that is not.
    """
    try:
        found = [float(part) for part in split_list(text or "")]
    except ValueError:
        found = [0.0]
    if any(not 0 < value < 1e9 for value in found):
        raise CommandError(f"{flag} {text}: expected numbers above 0 with commas between", WRONG_USAGE)
    return found


def counts(flag: str, text: str) -> list[int]:
    """The whole numbers of a list, all from 1 on, ascending, each once.

    Raises:
        Failure: one that is not, or none.
    """
    found = numbers(flag, text)
    if not found or any(value != int(value) for value in found):
        raise CommandError(f"{flag} {text}: expected whole numbers from 1 on with commas between", WRONG_USAGE)
    return sorted({int(value) for value in found})


def pairs(flag: str, texts: list[str] | None) -> dict[str, str]:
    """The names and values of NAME=VALUE arguments.

    Raises:
        Failure: one without '='.
    """
    for text in texts or ():
        if "=" not in text:
            raise CommandError(f"{flag} {text}: expected NAME=VALUE", WRONG_USAGE)
    return {name.replace("-", "_"): value for name, _, value in (text.partition("=") for text in texts or ())}
