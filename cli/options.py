"""Options that several commands share, numbers with a limit, and commands whose options are a dataclass."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from .bundle_args import bundle_path
from .errors import WRONG_USAGE, CommandError

T = TypeVar("T")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a bundle that is there already.")]
Bundle = Annotated[
    Path, typer.Argument(metavar="BUNDLE", help="Folder of a bundle, or demo.", show_default=False, parser=bundle_path)
]
Out = Annotated[Path, typer.Argument(metavar="OUT", help="Folder of the new bundle.", show_default=False)]

PLOT_SUFFIXES = (".svg", ".png")


def check_plot(plot: Path | None) -> None:
    """Check before a long run that its plot can be drawn.

    Raises:
        CommandError: the name ends in none of PLOT_SUFFIXES.
        ImportError: matplotlib is not installed.
    """
    from ..models.report.drawing import require

    if plot is None:
        return
    if plot.suffix not in PLOT_SUFFIXES:
        raise CommandError(f"--plot {plot}: must end in {' or '.join(PLOT_SUFFIXES)}", WRONG_USAGE)
    require("matplotlib")


def text_option(metavar: str, help: str, *flag: str, parser: Callable[[str], object] | None = None) -> Any:
    """Make an option that takes text or a path. `flag`: where it is not the parameter's own name."""
    return typer.Option(*flag, metavar=metavar, help=help, parser=parser)


def number_option(*flag_and_help: str, least: float = 1, kind: type[int] | type[float] = int) -> Any:
    """Make an option that takes a number from `least` on; a refusal names the value.

    Args:
        flag_and_help: the help, and before it the flag where that is not the parameter's own name.
    """
    *flags, help = flag_and_help

    def parse(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            words = "a whole number" if kind is int else "a number"
            raise typer.BadParameter(f"{text!r}: must be {words}") from None
        if not value >= least:
            raise typer.BadParameter(f"{text}: must be at least {least:g}")
        return value

    return typer.Option(*flags, metavar="N", help=help, parser=parse)


decimal_option = partial(number_option, least=0, kind=float)
"""An option that takes a number from 0 on, which may have decimals."""


def storage_option(help: str) -> Any:
    """Make an option that takes one of the precisions of a bundle's weights."""

    def parse(text: str) -> str:
        from ..models.bundle.config import STORAGES

        if text not in STORAGES:
            raise typer.BadParameter(f"{text!r}: must be one of {', '.join(STORAGES)}")
        return text

    return typer.Option("--storage", metavar="TYPE", help=help, parser=parse)


DeviceOption = Annotated[
    str | None, text_option("auto|cpu|cuda[:N]", "Where to compute; auto = a GPU if there is one.")
]
Plot = Annotated[Path | None, text_option("FILE", "Draw the figures: FILE.svg or FILE.png (needs milkweed[train]).")]
Int8Limit = Annotated[float | None, decimal_option("Error of a layer's outputs, as 0.02, up to which it becomes int8.")]
Layers = Annotated[str, text_option("LIST", "Which layers: mlp, qkv, proj, names or patterns, with commas between.")]
Gating = Annotated[bool, typer.Option("--gating/--no-gating", help="pixelfly: learn the share of its two parts.")]
Seed = Annotated[int, number_option("Seed of every random choice.", least=0)]
Workers = Annotated[int, number_option("Processes that decode and augment; 0 = none beside this one.", least=0)]
Threads = Annotated[int | None, number_option("Threads of torch on the CPU; not given: as torch chooses.")]


def takes(options: type[T]) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Make a command of a function that takes one dataclass: each field is an argument or option of the command.

    Args:
        options: the dataclass; its fields are annotated as typer wants the parameters of a command.
    """
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=field.type,
        )
        for field in fields(options)  # type: ignore[arg-type]  # no type says that a class is a dataclass
    ]

    def decorate(function: Callable[[T], None]) -> Callable[..., None]:
        @wraps(function)
        def command(**values: Any) -> None:
            function(options(**values))

        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def filled(kind: Callable[..., T], options: object, /, **others: Any) -> T:
    """Make a dataclass of the options that are called like its fields; one that is None leaves the field's default.

    Args:
        others: fields whose values are not simply an option's.
    """
    names = {field.name for field in fields(kind)} - others.keys()  # type: ignore[arg-type]
    values = {name: value for name, value in vars(options).items() if name in names and value is not None}
    return kind(**values, **others)


def split_list(text: str) -> list[str]:
    """Split a value at its commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def json_object(option: str, text: str | None) -> dict[str, Any]:
    """Read an object from JSON text, or from the file that the text names.

    Raises:
        CommandError: the text is neither.
    """
    from ..models.bundle.strict_json import parse_json

    if text is None:
        return {}
    try:
        document = parse_json(text.encode() if text.lstrip().startswith("{") else Path(text).read_bytes())
    except OSError as error:
        raise CommandError(f"{option} {text}: no JSON object, and as a file: {error.strerror}", WRONG_USAGE) from None
    except ValueError as error:
        raise CommandError(f"{option} {text}: {error}", WRONG_USAGE) from None
    if not isinstance(document, dict):
        raise CommandError(f"{option} {text}: must be a JSON object", WRONG_USAGE)
    return document
