"""Imports a checkpoint as a bundle."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..architectures.registry import default_preprocess
from ..bundle.bundle import save_bundle
from ..bundle.config import BundleConfig
from ..bundle.labels import Label, default_labels
from ..bundle.provenance import add_step
from ..bundle.storage import SCALE
from ..errors import CheckpointError
from .card import ModelInfo
from .checkpoint import CheckpointInfo, read_checkpoint
from .diagnosis import classes_hint
from .fitting import fit_checkpoint
from .timm_weights import PREFIX, fetch_timm_weights


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

    Structured layers already in the checkpoint (`blkdiag1`, `blkdiag2`) become the bundle's structure.

    Args:
        path: of a file or folder as `read_checkpoint` takes it, or `timm:NAME` for weights that timm publishes, the
            only ones that are ever fetched.
        arch: a name of `list_models()`; None to recognise it from the keys.
        num_classes: taken from the classifier when None.
        labels: one for each class; those of a config.json beside the weights, or "class 17" and the like, when None.
        preprocess: members of a bundle's preprocess; what is not given is as in a config.json beside the weights, or as
            published for `arch`.
        arch_args: further arguments of the architecture.

    Raises:
        CheckpointError: what cannot be had or read, or does not fit; `details` says more.
        BundleError: the bundle cannot be written.
        ValueError: an unknown architecture or bad arguments.
    """
    start = time.perf_counter()
    state, info, arch = _read(str(path), arch)
    _check_no_scales(path, state)
    card = _card_of(info, arch)
    wanted_args = {**card.arch_args, **dict(arch_args or {})}
    fitted = fit_checkpoint(
        str(path), state, arch or card.arch or None, num_classes, wanted_args, named=info.facts.get("arch")
    )
    classes = fitted.arch_args["num_classes"]
    if labels is not None and len(labels) != classes:
        hint = classes_hint(classes)
        raise CheckpointError(f"{path}: {len(labels)} labels given, the checkpoint has {classes} classes{hint}")
    if labels is None and card.labels is not None and len(card.labels) == classes:
        labels = card.labels
    notes = [*info.notes, *card.notes, *fitted.notes]
    own_args = {name: value for name, value in fitted.arch_args.items() if name != "num_classes"}
    prepared = default_preprocess(fitted.arch, **own_args) | dict(fitted.preprocess) | dict(card.preprocess)
    if "img_size" in own_args:
        prepared["size"] = own_args["img_size"]
    seconds = time.perf_counter() - start
    config = BundleConfig(
        arch=fitted.arch,
        arch_args=fitted.arch_args,
        structure=fitted.structure,
        preprocess=prepared | dict(preprocess or {}),
        provenance=add_step(
            {"source": _source(info, notes)},
            "import",
            {"arch": arch, "num_classes": num_classes, "arch_args": dict(arch_args or {})},
            seconds,
        ),
        labels=tuple(default_labels(classes) if labels is None else labels),
    )
    saved = save_bundle(out, fitted.model, config, overwrite=overwrite)
    return ImportReport(saved, info, tuple(notes), time.perf_counter() - start)


def _read(path: str, arch: str | None) -> tuple[dict[str, Tensor], CheckpointInfo, str | None]:
    """The weights at a path or of a timm name, which is the architecture where no other is named."""
    if not path.startswith(PREFIX):
        return *read_checkpoint(path), arch
    name = path.removeprefix(PREFIX)
    default_preprocess(name)  # an unknown name is refused before anything is fetched
    state, info = read_checkpoint(fetch_timm_weights(name))
    return state, replace(info, file=path), arch or name


def _check_no_scales(path: str | Path, state: Mapping[str, Tensor]) -> None:
    """Refuse the weights of a bundle in int8, which mean nothing without its config."""
    key = next((key for key, tensor in state.items() if tensor.dtype == torch.int8 and key + SCALE in state), None)
    if key is not None:
        raise CheckpointError(
            f"{path}: {key} is int8 with scales, as in a bundle of milkweed: give the bundle's folder to other "
            "commands, or make it float32 again with milkweed convert --storage float32"
        )


def _card_of(info: CheckpointInfo, arch: str | None) -> ModelInfo:
    """What a config.json says; nothing where there is none, or where the architecture is named to be another."""
    card = info.card
    same = card is not None and (arch is None or arch.partition(".")[0] == card.arch.partition(".")[0])
    return card if card is not None and same else ModelInfo("")


def _source(info: CheckpointInfo, notes: Sequence[str]) -> dict[str, Any]:
    return {
        "file": info.file,
        "sha256": info.sha256,
        "container": info.container,
        "weights_from": info.wrapper,
        "stripped": list(info.stripped),
        "facts": dict(info.facts),
        "notes": list(notes),
    }
