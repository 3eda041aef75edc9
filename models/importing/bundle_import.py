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
from ..bundle.config import PROBLEM_TYPES, BundleConfig
from ..bundle.labels import Label, default_labels
from ..bundle.provenance import add_step
from ..bundle.storage import SCALE
from ..errors import CheckpointError, quoted
from .card import ModelCard
from .checkpoint import CheckpointInfo, read_checkpoint
from .diagnosis import classes_hint
from .fitting import Fitted, fit_checkpoint
from .hub import TIMM, fetch_weights, is_named


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
    projects: bool = False,
    labels: Sequence[Label] | None = None,
    preprocess: Mapping[str, Any] | None = None,
    arch_args: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> ImportReport:
    """Read a checkpoint, fit it to an architecture, write the bundle `out`.

    Structured layers already in the checkpoint (`blkdiag1`, `blkdiag2`) become the bundle's structure.

    Args:
        path: a file or folder as `read_checkpoint` takes it, `timm:NAME` for weights that timm publishes, or
            `hf://ORG/REPO[@REVISION]` for a repository on the hub; nothing else is ever fetched.
        arch: a name of `list_models()`; recognised from the keys when None.
        num_classes: number of classes; that of the classifier when None. 0: the model is there for its embedding, which
            a classifier would read.
        projects: the classifier is a projection, as CLIP's is: what it gives is the embedding.
        labels: one for each class; when None, those of a config.json beside the weights, or "class 17" and the like.
        preprocess: members of a bundle's preprocess; the others are those of a config.json beside the weights, or those
            published for `arch`.
        arch_args: further arguments of the architecture.

    Raises:
        CheckpointError: the checkpoint cannot be fetched or read, or does not fit; `details` says more.
        BundleError: the bundle cannot be written.
        ValueError: an unknown architecture or bad arguments.
    """
    start = time.perf_counter()
    if projects and num_classes == 0:
        raise ValueError("a projection is a classifier's layer: num_classes 0 leaves it out")
    state, info, arch = _read(str(path), arch)
    _check_no_scales(path, state)
    card = _card_of(info, arch)
    wanted_args = {**card.arch_args, **dict(arch_args or {})}
    count = card.num_classes if num_classes is None else num_classes
    fitted = fit_checkpoint(
        str(path), state, arch or card.arch or None, count, wanted_args, named=info.facts.get("arch")
    )
    classes = fitted.arch_args["num_classes"]
    notes = (*info.notes, *card.notes, *fitted.notes)
    if labels is None and len(card.labels or ()) not in (0, classes):
        notes += (f"left out the {len(card.labels or ())} labels of its config: it has {classes} classes",)
    config = BundleConfig(
        arch=fitted.arch,
        arch_args=fitted.arch_args,
        structure=fitted.layer_specs,
        labels=_labels(path, labels, card, classes),
        problem_type=PROBLEM_TYPES[2] if projects or count == 0 else card.problem_type,
        preprocess=_preprocess(fitted, card) | dict(preprocess or {}),
        provenance=add_step(
            {"source": _source(info, notes)},
            "import",
            {"arch": arch, "num_classes": num_classes, "projects": projects, "arch_args": dict(arch_args or {})},
            time.perf_counter() - start,
        ),
    )
    saved = save_bundle(out, fitted.model, config, overwrite=overwrite)
    return ImportReport(saved, info, notes, time.perf_counter() - start)


def _read(path: str, arch: str | None) -> tuple[dict[str, Tensor], CheckpointInfo, str | None]:
    """The weights at a path or of a name, and the architecture: the timm name where no other is given."""
    if not is_named(path):
        return *read_checkpoint(path), arch
    if path.startswith(TIMM):
        arch = arch or path.removeprefix(TIMM)
        default_preprocess(path.removeprefix(TIMM))  # an unknown name is refused before anything is fetched
    folder = fetch_weights(path)
    state, info = read_checkpoint(folder)
    return state, replace(info, file=path, commit=folder.name), arch


def _check_no_scales(path: str | Path, state: Mapping[str, Tensor]) -> None:
    """Refuse a bundle's int8 weights, which mean nothing without its config."""
    key = next((key for key, tensor in state.items() if tensor.dtype == torch.int8 and key + SCALE in state), None)
    if key is not None:
        raise CheckpointError(
            f"{path}: {key} is int8 with scales, as in a bundle of milkweed: give the bundle's folder to other "
            "commands, or make it float32 again with milkweed convert --storage float32"
        )


def _card_of(info: CheckpointInfo, arch: str | None) -> ModelCard:
    """The card of a config.json; an empty one where there is none, or where another architecture was asked for."""
    card = info.card or ModelCard("")
    if arch is None or not card.arch or arch.partition(".")[0] == card.arch.partition(".")[0]:
        return card
    return ModelCard("", notes=(f"its config.json was not used: it describes {quoted(card.arch)}",))


def _labels(path: str | Path, labels: Sequence[Label] | None, card: ModelCard, classes: int) -> tuple[Label, ...]:
    """The labels that are passed, those of the card where it has one for each class, or numbers."""
    if labels is not None and len(labels) != classes:
        hint = classes_hint(classes)
        raise CheckpointError(f"{path}: {len(labels)} labels given, the checkpoint has {classes} classes{hint}")
    if labels is None:
        labels = card.labels if card.labels is not None and len(card.labels) == classes else default_labels(classes)
    return tuple(labels)


def _preprocess(fitted: Fitted, card: ModelCard) -> dict[str, Any]:
    """What is published for the architecture, with what the checkpoint's keys and card say otherwise."""
    args = {name: value for name, value in fitted.arch_args.items() if name not in ("num_classes", "classifier")}
    prepared = default_preprocess(fitted.arch, **args) | dict(fitted.preprocess) | dict(card.preprocess)
    if prepared.get("crop_mode") == "center":  # as a bundle means that does not say
        del prepared["crop_mode"]
    return prepared | ({"size": args["img_size"]} if "img_size" in args else {})


def _source(info: CheckpointInfo, notes: Sequence[str]) -> dict[str, Any]:
    return {
        "file": info.file,
        **({"commit": info.commit} if info.commit else {}),
        "sha256": info.sha256,
        "container": info.container,
        "weights_from": info.wrapper,
        "stripped": list(info.stripped),
        "facts": dict(info.facts),
        "notes": list(notes),
    }
