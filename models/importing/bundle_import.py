"""Imports a checkpoint as a bundle."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..bundle import save_bundle
from ..config import BundleConfig
from ..errors import CheckpointError
from ..labels import Label, default_labels
from ..provenance import add_step
from ..registry import default_preprocess
from .checkpoint import CheckpointInfo, read_checkpoint
from .fitting import fit_checkpoint


@dataclass(frozen=True)
class ImportReport:
    """What `import_checkpoint` did; `notes` are sentences for a person."""

    config: BundleConfig
    info: CheckpointInfo
    notes: tuple[str, ...]
    seconds: float


def import_checkpoint(
    path: str | Path,
    arch: str | None,
    out: str | Path,
    *,
    num_classes: int | None = None,
    labels: Sequence[Label] | None = None,
    preprocess: Mapping[str, Any] | None = None,
    arch_args: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> ImportReport:
    """Read a checkpoint, fit it to an architecture, write the bundle `out`.

    Monarch layers already in the checkpoint (`blkdiag1`, `blkdiag2`) become the bundle's structure.

    Args:
        arch: a name of `list_models()`; None to recognise it from the keys.
        num_classes: taken from the classifier when None.
        labels: one for each class; "class 17" and the like when None.
        preprocess: how the model's images are prepared; as published for `arch` when None.
        arch_args: further arguments of the architecture.

    Raises:
        CheckpointError: a file that cannot be read, or does not fit; `details` says more.
        BundleError: the bundle cannot be written.
        ValueError: an unknown architecture or bad arguments.
    """
    start = time.perf_counter()
    state, info = read_checkpoint(path)
    fitted = fit_checkpoint(str(path), state, arch, num_classes, dict(arch_args or {}))
    classes = fitted.arch_args["num_classes"]
    if labels is not None and len(labels) != classes:
        raise CheckpointError(f"{path}: {len(labels)} labels given, the checkpoint has {classes} classes")
    notes = [*_notes(info), *fitted.notes]
    source = {
        "file": info.file,
        "sha256": info.sha256,
        "container": info.container,
        "weights_from": info.wrapper,
        "stripped": list(info.stripped),
        "facts": dict(info.facts),
        "notes": notes,
    }
    arguments = {"arch": arch, "num_classes": num_classes, "arch_args": dict(arch_args or {})}
    seconds = time.perf_counter() - start
    config = BundleConfig(
        arch=fitted.arch,
        arch_args=fitted.arch_args,
        structure=fitted.structure,
        preprocess=dict(preprocess or default_preprocess(fitted.arch, **dict(arch_args or {}))),
        provenance=add_step({"source": source}, "import", arguments, seconds),
        labels=tuple(default_labels(classes) if labels is None else labels),
    )
    saved = save_bundle(out, fitted.model, config, overwrite=overwrite)
    return ImportReport(saved, info, tuple(notes), time.perf_counter() - start)


def _notes(info: CheckpointInfo) -> list[str]:
    notes = []
    if info.wrapper == "state_dict_ema":
        notes.append("took the averaged weights (state_dict_ema), which published scores are measured with")
    if info.stripped:
        notes.append(f"took the prefix {' and '.join(info.stripped)} off the keys")
    return notes
