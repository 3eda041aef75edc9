"""Prints the recipe that made a bundle, out of its provenance, as this version and earlier ones recorded it."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import WRONG_USAGE, CommandError
from ..output import note, print_json

if TYPE_CHECKING:
    from ...models import BundleConfig

MANUAL = ("layers", "nblocks", "rank", "options", "budget", "cost")
"""The arguments of the manual form of 0.2.0 and before that a structure still has."""


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
        steps = list(config.provenance.get("commands", ()))
        last = max((place for place, step in enumerate(steps) if step["command"] == "compress"), default=None)
        if last is None:
            raise CommandError(f"bundle {bundle}: no `milkweed compress` made it, so there is no recipe of it")
        arguments = steps[last]["arguments"]
        if isinstance(arguments.get("structure"), str):
            note(f"bundle {bundle}: images and training of the manual form are not on record: what it makes is similar")
            values = _of_manual_form(arguments, trained=any(step["command"] == "recover" for step in steps[last:]))
        else:
            values = arguments["recipe"] if "recipe" in arguments else _of_search(arguments)
        return {"arch": config.arch, **Recipe.from_dict(values).to_dict()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CommandError(f"bundle {bundle}: its provenance has no recipe that can be read: {error}") from None


def _of_search(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe of what a search of 0.2.0 or before recorded."""
    parts = {"tokens": arguments["tokens"], "widths": arguments["widths"]}
    parts |= {"quantization": arguments["bits"]} if arguments["bits"] else {}
    return parts | ({"distillation": {}} if arguments["distilled"] else {})


def _of_manual_form(arguments: Mapping[str, Any], *, trained: bool) -> dict[str, Any]:
    """A recipe of what the manual form recorded."""
    from ...compress.recipe import OF_STRUCTURES

    chosen = arguments.get("budget") is not None
    structure = {name: arguments[name] for name in MANUAL if name in arguments and not (chosen and name == "rank")}
    distillation = {"distillation": asdict(OF_STRUCTURES)} if trained else {}
    return {"structure": {"kind": arguments["structure"], **structure}, **distillation}
