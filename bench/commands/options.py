"""Options of several commands of `milkweed bench`, and lists and pairs as they are read from the command line."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ...cli.errors import WRONG_USAGE, CommandError
from ...cli.options import number_option, split_list, text_option


def bundle_argument(help: str) -> Any:
    """The folder of a bundle, as an argument."""
    return typer.Argument(metavar="BUNDLE", help=help)


Out = Annotated[Path | None, text_option("FILE", "File of the JSON; not given: beside --plot, else in bench/results/.")]
BatchSizes = Annotated[str, text_option("LIST", "Images of a batch, with commas between.")]
Threads = Annotated[int, number_option("Threads of torch that compute one batch.")]


def chosen(flag: str, text: str, known: tuple[str, ...]) -> list[str]:
    """The parts of a list; a CommandError names one that is not known, or says that there is none."""
    found = split_list(text)
    if not found or set(found) - set(known):
        raise CommandError(f"{flag} {text}: expected some of {', '.join(known)}", WRONG_USAGE)
    return found


def numbers(flag: str, text: str | None) -> list[float]:
    """The numbers of a list; a CommandError refuses what is no number above 0."""
    try:
        found = [float(part) for part in split_list(text or "")]
    except ValueError:
        found = [0.0]
    if any(not 0 < value < 1e9 for value in found):
        raise CommandError(f"{flag} {text}: expected numbers above 0 with commas between", WRONG_USAGE)
    return found


def counts(flag: str, text: str) -> list[int]:
    """The whole numbers of a list, ascending, each once; a CommandError refuses others, and an empty list."""
    found = numbers(flag, text)
    if not found or any(value != int(value) for value in found):
        raise CommandError(f"{flag} {text}: expected whole numbers from 1 on with commas between", WRONG_USAGE)
    return sorted({int(value) for value in found})


def pairs(flag: str, texts: list[str] | None) -> dict[str, str]:
    """The names and values of NAME=VALUE arguments; a CommandError refuses one without '='."""
    for text in texts or ():
        if "=" not in text:
            raise CommandError(f"{flag} {text}: expected NAME=VALUE", WRONG_USAGE)
    return {name.replace("-", "_"): value for name, _, value in (text.partition("=") for text in texts or ())}
