"""`milkweed models`: the architectures it knows."""

from fnmatch import fnmatchcase
from typing import Annotated, Any

import typer

from .failure import WRONG_USAGE, Failure
from .options import Json
from .output import print_json, print_table
from .progress import progress

Pattern = Annotated[str, typer.Argument(metavar="PATTERN", help="Only names like this, such as 'vitae*'.")]
WithMacs = Annotated[
    bool, typer.Option("--macs", help="Also count multiply-accumulates of one image (a minute for all).")
]


def models(pattern: Pattern = "*", macs: WithMacs = False, json: Json = False) -> None:
    """List the architectures: name, parameters, image size.

    \b
    Example:
      milkweed models 'vitae*' --macs
    """
    from ...models import list_models

    names = [name for name in list_models() if fnmatchcase(name, pattern)]
    if not names:
        raise Failure(f"PATTERN {pattern!r}: fits none of {len(list_models())} architectures", WRONG_USAGE)
    rows = []
    with progress("models", "architectures") as update:
        for done, name in enumerate(names, 1):
            rows.append(_describe(name, macs))
            update(done, len(names))
    if json:
        print_json({"models": rows})
        return
    columns = ("name", " parameters", " image px", *((" GMACs",) if macs else ()))
    print_table(columns, ([_text(value) for value in row.values()] for row in rows))


def _describe(name: str, with_macs: bool) -> dict[str, Any]:
    """One row; an architecture of free arguments has no figures."""
    import torch

    from ...models import create_model, default_preprocess
    from ...models import macs as count_macs
    from ...models.registry import CUSTOM_VITAE

    size = int(default_preprocess(name)["size"])
    row: dict[str, Any] = {"name": name, "parameters": None, "image_px": size}
    if with_macs:
        row["gmacs"] = None
    if name == CUSTOM_VITAE:
        return {**row, "image_px": None}
    with torch.device("meta"):  # shapes only: the largest would take gigabytes
        model = create_model(name)
    row["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    if with_macs:
        row["gmacs"] = round(count_macs(model, size).total / 1e9, 3)
    return row


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
