"""Prints the recipe that made a bundle, out of its provenance."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import WRONG_USAGE, CommandError
from ..output import print_json

if TYPE_CHECKING:
    from ...models import BundleConfig


def print_recipe(bundle: Path, plot: Path | None) -> None:
    """Print the file with which `milkweed compress --recipe` makes a bundle again.

    Raises:
        CommandError: as `recorded_recipe`; a plot is asked for.
    """
    from ...models import read_config

    if plot is not None:
        raise CommandError("--recipe prints a file and nothing else: leave --plot out", WRONG_USAGE)
    print_json(recorded_recipe(bundle, read_config(bundle)))


def recorded_recipe(bundle: Path, config: "BundleConfig") -> dict[str, Any]:
    """Return what a recipe's file holds that makes a bundle again, by the last `compress` that is on record.

    Raises:
        CommandError: none is, or its record cannot be read.
    """
    from ...compress.recipe import Recipe

    try:
        steps = [step for step in config.provenance.get("commands", ()) if step["command"] == "compress"]
        if not steps:
            raise CommandError(f"bundle {bundle}: no `milkweed compress` made it, so there is no recipe of it")
        arguments = steps[-1]["arguments"]
        values = arguments["recipe"] if "recipe" in arguments else _of_search(arguments)
        return {"arch": config.arch, **Recipe.from_dict(values).to_dict()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CommandError(f"bundle {bundle}: its provenance has no recipe that can be read: {error}") from None


def _of_search(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe of what a search of 0.2.0 or before recorded."""
    parts = {"tokens": arguments["tokens"], "widths": arguments["widths"]}
    parts |= {"quantization": arguments["bits"]} if arguments["bits"] else {}
    return parts | ({"distillation": {}} if arguments["distilled"] else {})
