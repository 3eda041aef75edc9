"""Options of several commands of `milkweed bench`, and lists and pairs as they are read from the command line."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ..cli.errors import WRONG_USAGE, CommandError
from ..cli.options import number_option, split_list, text_option


def bundle_argument(help: str) -> Any:
    """The folder of a bundle, as an argument."""
    return typer.Argument(metavar="BUNDLE", help=help)


Out = Annotated[Path | None, text_option("FILE", "File of the JSON; not given: beside --plot, else in bench/results/.")]
BatchSizes = Annotated[str, text_option("LIST", "Images of a batch, with commas between.")]
Threads = Annotated[int, number_option("Threads of torch that compute one batch.")]


def list_option(flag: str, help: str, known: tuple[str, ...]) -> Any:
    """An option that takes some of the known words."""
    return text_option("LIST", help, parser=_parsed(lambda text: chosen(flag, text, known)))


def numbers_option(flag: str, help: str) -> Any:
    """An option that takes numbers above 0."""
    return text_option("LIST", help, parser=_parsed(lambda text: numbers(flag, text)))


def _parsed(parse: Callable[[str], list[Any]]) -> Callable[[Any], Any]:
    """Parse what is typed; a default is a list already."""
    return lambda value: parse(value) if isinstance(value, str) else value


def chosen(flag: str, text: str, known: tuple[str, ...]) -> list[str]:
    """The parts of a list; a CommandError names one that is not known, or says that there is none."""
    parts = split_list(text)
    if not parts or set(parts) - set(known):
        raise CommandError(f"{flag} {text}: expected some of {', '.join(known)}", WRONG_USAGE)
    return parts


def numbers(flag: str, text: str) -> list[float]:
    """The numbers of a list; a CommandError refuses what is no number above 0."""
    try:
        values = [float(part) for part in split_list(text)]
    except ValueError:
        values = [0.0]
    if any(not 0 < value < 1e9 for value in values):
        raise CommandError(f"{flag} {text}: expected numbers above 0 with commas between", WRONG_USAGE)
    return values


def counts(flag: str, text: str) -> list[int]:
    """The whole numbers of a list, ascending, each once; a CommandError refuses others, and an empty list."""
    values = numbers(flag, text)
    if not values or any(value != int(value) for value in values):
        raise CommandError(f"{flag} {text}: expected whole numbers from 1 on with commas between", WRONG_USAGE)
    return sorted({int(value) for value in values})


def pairs(flag: str, texts: list[str] | None) -> dict[str, str]:
    """The names and values of NAME=VALUE arguments; a CommandError refuses one without '='."""
    for text in texts or ():
        if "=" not in text:
            raise CommandError(f"{flag} {text}: expected NAME=VALUE", WRONG_USAGE)
    return {name.replace("-", "_"): value for name, _, value in (text.partition("=") for text in texts or ())}
