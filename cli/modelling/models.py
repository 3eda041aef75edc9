"""`milkweed models` lists the known architectures."""

from fnmatch import fnmatchcase
from typing import Annotated, Any

import typer

from ..errors import WRONG_USAGE, CommandError
from ..options import Json
from ..output import print_json, print_table
from ..progress import progress

Pattern = Annotated[str, typer.Argument(metavar="PATTERN", help="Only names like this, such as 'vitae*'.")]
WithMacs = Annotated[
    bool, typer.Option("--macs", help="Also the multiply-accumulates of one image (ten seconds for all).")
]


def models(pattern: Pattern = "*", macs: WithMacs = False, json: Json = False) -> None:
    """List the architectures: parameters, image size, linear layers.

    Linear layers are those that can be replaced, outside the classifier. docs/models.md describes the families.

    \b
    Example:
      milkweed models 'vitae*' --macs
    """
    from ...models import list_models

    known = list_models()
    names = [name for name in known if fnmatchcase(name, pattern)]
    if not names:
        raise CommandError(f"PATTERN {pattern!r}: fits none of {len(known)} architectures", WRONG_USAGE)
    rows = []
    with progress("models", "architectures") as update:
        for done, name in enumerate(names, 1):
            rows.append(_describe(name, macs))
            update(done, len(names))
    if json:
        print_json({"models": rows})
        return
    columns = ("name", " parameters", " image px", " linears", *((" GMACs",) if macs else ()))
    print_table(columns, ([_text(value) for value in row.values()] for row in rows))


def _describe(name: str, with_macs: bool) -> dict[str, Any]:
    """Make one row; an architecture whose arguments are free has no figures."""
    from ...models.architectures.registry import CUSTOM_VITAE
    from ...models.architectures.summary import architecture_summary

    figures = {"parameters": None, "image_px": None, "linears": None, **({"gmacs": None} if with_macs else {})}
    row: dict[str, Any] = {"name": name, **figures}
    if name == CUSTOM_VITAE:
        return row
    entry = architecture_summary(name, with_macs=with_macs)
    row |= {"parameters": entry.parameters, "image_px": entry.image_px, "linears": entry.linears}
    if entry.macs is not None:
        row["gmacs"] = round(entry.macs / 1e9, 3)
    return row


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
