"""`milkweed models` lists the known architectures."""

from fnmatch import fnmatchcase
from typing import Annotated, Any

import typer

from ..errors import WRONG_USAGE, CommandError
from ..options import Json
from ..output import print_json, print_table
from ..progress import progress

Pattern = Annotated[
    str | None,
    typer.Argument(metavar="PATTERN", help="Only names like this, such as 'vitae*', with their parameters and layers."),
]
WithMacs = Annotated[bool, typer.Option("--macs", help="Also the multiply-accumulates of one image.")]


def models(pattern: Pattern = None, macs: WithMacs = False, json: Json = False) -> None:
    """List the architectures; those of a PATTERN with their sizes.

    Linear layers are those that can be replaced, outside the classifier; they and the parameters are counted in
    models that are built without memory for weights: some ten a second. docs/models.md describes the families.

    \b
    Example:
      milkweed models 'vitae*' --macs
    """
    from ...models import list_models

    known = list_models()
    names = [name for name in known if fnmatchcase(name, pattern or "*")]
    if not names:
        raise CommandError(f"PATTERN {pattern!r}: fits none of {len(known)} architectures", WRONG_USAGE)
    rows = []
    with progress("models", "architectures") as update:
        for done, name in enumerate(names, 1):
            rows.append(_described(name) if pattern is None and not macs else _counted(name, macs))
            update(done, len(names))
    if json:
        print_json({"models": rows})
        return
    titles = {"name": "name", "family": "family", "image_px": " image px", "gmacs": " GMACs"}
    columns = [titles.get(key, f" {key}") for key in rows[0]]
    print_table(columns, ([_text(value) for value in row.values()] for row in rows))


def _described(name: str) -> dict[str, Any]:
    """Make the row of an architecture; one whose arguments are free has no image size."""
    from ...models import default_preprocess
    from ...models.architectures.registry import CUSTOM_VITAE, family

    size = None if name == CUSTOM_VITAE else default_preprocess(name)["size"]
    return {"name": name, "family": family(name), "image_px": size}


def _counted(name: str, with_macs: bool) -> dict[str, Any]:
    """Make the row of an architecture with its figures; one whose arguments are free has none."""
    from ...models.architectures.registry import CUSTOM_VITAE
    from ...models.architectures.summary import architecture_summary

    entry = None if name == CUSTOM_VITAE else architecture_summary(name, with_macs=with_macs)
    row = _described(name) | {
        "parameters": None if entry is None else entry.parameters,
        "linears": None if entry is None else entry.linears,
    }
    if with_macs:
        row["gmacs"] = None if entry is None or entry.macs is None else round(entry.macs / 1e9, 3)
    return row


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
