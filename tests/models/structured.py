"""A bundle with structured layers, made without the search: the nearest matrices, written as they are."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from milkweed.models import layer_specs_for, load_bundle, save_bundle, select_linears
from milkweed.models.projection.replacement import project_layer


def project_bundle(source: Path, out: Path, layers: Sequence[str] = ("mlp",), **options: Any) -> Path:
    """Write `source` with Monarch layers, or those of another `kind`, and return `out`.

    Args:
        layers: as in `select_linears`.
        options: as in `layer_specs_for`.
    """
    model, config = load_bundle(source)
    specs = layer_specs_for(model, select_linears(model, layers), **options)
    for name, spec in specs.items():
        project_layer(model, name, spec)
    save_bundle(out, model, replace(config, structure={**config.structure, **specs}))
    return out
