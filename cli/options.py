"""Options that several commands share, and numbers with a limit: all are spelled and refused alike."""

from pathlib import Path
from typing import Annotated, Any

import typer

from .errors import WRONG_USAGE, CommandError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a bundle that is there already.")]
Device = Annotated[
    str | None,
    typer.Option("--device", metavar="auto|cpu|cuda[:N]", help="Where to compute; auto = a GPU if there is one."),
]
Bundle = Annotated[Path, typer.Argument(metavar="BUNDLE", help="Folder of the bundle.", show_default=False)]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="Draw the figures: FILE.svg or FILE.png (needs milkweed[train])."),
]
Out = Annotated[Path, typer.Argument(metavar="OUT", help="Folder of the new bundle.", show_default=False)]


PLOT_SUFFIXES = (".svg", ".png")


def check_plot(plot: Path | None) -> None:
    """Find out before a long run whether its picture can be drawn.

    Raises:
        Failure: a name that ends in none of PLOT_SUFFIXES.
        ImportError: matplotlib is not installed.
    """
    from ..models.report.drawing import require

    if plot is None:
        return
    if plot.suffix not in PLOT_SUFFIXES:
        raise CommandError(f"--plot {plot}: must end in {' or '.join(PLOT_SUFFIXES)}", WRONG_USAGE)
    require("matplotlib")


def number_option(flag: str, help: str, *, least: float = 1, kind: type[int] | type[float] = int) -> Any:
    """An option that takes a number from `least` on, and says which one it got when it refuses."""

    def parse(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            words = "a whole number" if kind is int else "a number"
            raise typer.BadParameter(f"{text!r}: must be {words}") from None
        if not value >= least:
            raise typer.BadParameter(f"{text}: must be at least {least:g}")
        return value

    return typer.Option(flag, metavar="N", help=help, parser=parse)


def storage_option(help: str) -> Any:
    """An option that takes one of the precisions of a bundle's weights."""

    def parse(text: str) -> str:
        from ..models.bundle.storage import STORAGES

        if text not in STORAGES:
            raise typer.BadParameter(f"{text!r}: must be one of {', '.join(STORAGES)}")
        return text

    return typer.Option("--storage", metavar="TYPE", help=help, parser=parse)


Int8Limit = Annotated[
    float | None,
    number_option(
        "--int8-limit", "Error of a layer's outputs, as 0.02, up to which it becomes int8.", least=0, kind=float
    ),
]


def split_list(text: str) -> list[str]:
    """The parts of a value with commas between."""
    return [part.strip() for part in text.split(",") if part.strip()]


def json_object(option: str, text: str | None) -> dict[str, Any]:
    """An object from JSON, or from the file that is named.

    Raises:
        Failure: it is neither.
    """
    from ..models.bundle.strict_json import parse_json

    if text is None:
        return {}
    try:
        found = parse_json(text.encode() if text.lstrip().startswith("{") else Path(text).read_bytes())
    except OSError as error:
        raise CommandError(f"{option} {text}: no JSON object, and as a file: {error.strerror}", WRONG_USAGE) from None
    except ValueError as error:
        raise CommandError(f"{option} {text}: {error}", WRONG_USAGE) from None
    if not isinstance(found, dict):
        raise CommandError(f"{option} {text}: must be a JSON object", WRONG_USAGE)
    return found
