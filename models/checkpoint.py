"""Reads published checkpoints of every usual container, running nothing in them; imports them as bundles."""

import argparse
import hashlib
import pickle
import re
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .bundle import save_bundle
from .config import BundleConfig
from .errors import CheckpointError, quoted
from .fitting import fit_checkpoint
from .labels import Label, default_labels
from .provenance import add_step
from .registry import default_preprocess
from .tensorfile import read_tensors

WRAPPERS = ("state_dict_ema", "state_dict", "model")
"""Where the weights may lie, best first: published scores are those of the averaged (EMA) weights."""

_PREFIXES = ("module.", "model.")
_MAX_FACTS = 20


@dataclass(frozen=True)
class CheckpointInfo:
    """What a checkpoint file is.

    Args:
        container: `torch zip`, `torch legacy` or `safetensors`.
        wrapper: the member the weights were taken from; empty when they are the file's own.
        stripped: prefixes taken off the keys.
        facts: plain numbers and texts stored beside the weights, such as epoch.
    """

    file: str
    sha256: str
    size_bytes: int
    container: str
    wrapper: str
    stripped: tuple[str, ...]
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class ImportReport:
    """What `import_checkpoint` did; `notes` are sentences for a person."""

    config: BundleConfig
    info: CheckpointInfo
    notes: tuple[str, ...]
    seconds: float


def read_checkpoint(path: str | Path) -> tuple[dict[str, Tensor], CheckpointInfo]:
    """Read the weights of a .pth, .pth.tar, .pt, .ckpt, .bin or .safetensors file, by content, on the CPU.

    Pickles are read with torch's weights-only unpickler, which builds tensors, plain data, argparse.Namespace
    (timm stores one) and nothing else.

    Raises:
        CheckpointError: no such file, not a checkpoint, damaged, or holding anything but data, or no tensors.
    """
    path = Path(path)
    container = _container(path)
    try:
        if container == "safetensors":
            file = read_tensors(path)
            document: Any = file.tensors
            sha256 = file.sha256
        else:
            document = _unpickle(path, container)
            with open(path, "rb") as stream:
                sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    except CheckpointError:
        raise
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: more bytes than there is memory
        raise CheckpointError(f"{path}: {_first_sentence(error)}") from error
    weights, wrapper = _unwrap(path, document)
    state, stripped = _strip_prefixes(path, weights)
    facts = {} if weights is document else _facts(document)
    info = CheckpointInfo(path.name, sha256, path.stat().st_size, container, wrapper, stripped, facts)
    return state, info


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


def _container(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            head = file.read(9)
    except FileNotFoundError:
        hint = "" if path.suffix else "; milkweed fetches nothing: give a file, not the name of a model"
        raise CheckpointError(f"checkpoint {path}: no such file{hint}") from None
    except IsADirectoryError:
        raise CheckpointError(f"checkpoint {path}: is a folder, a checkpoint is one file") from None
    except OSError as error:
        raise CheckpointError(f"checkpoint {path}: {error.strerror}") from None
    if head.startswith(b"PK\x03\x04"):
        return "torch zip"
    if head[8:9] == b"{" or path.suffix == ".safetensors":
        return "safetensors"
    if head.startswith(b"\x80"):
        return "torch legacy"
    raise CheckpointError(f"{path}: not a checkpoint: neither a torch file nor safetensors (begins with {head[:8]!r})")


def _unpickle(path: Path, container: str) -> Any:
    try:
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            # About pickle protocols and TorchScript archives: what cannot be read is an error here anyway.
            warnings.simplefilter("ignore", UserWarning)
            return torch.load(path, map_location="cpu", weights_only=True, mmap=container == "torch zip")
    except pickle.UnpicklingError as error:
        raise CheckpointError(f"{path}: {_refusal(str(error))}") from error
    except (
        RuntimeError,
        EOFError,
        KeyError,
        ValueError,
        AttributeError,
        TypeError,
        LookupError,
        OSError,
    ) as error:
        # Damaged files fail in torch in many ways.
        raise CheckpointError(f"{path}: damaged or not a torch checkpoint: {_first_sentence(error)}") from error


def _refusal(message: str) -> str:
    found = re.search(r"GLOBAL ([\w.]+)", message)
    if found is None:
        return f"damaged or not a torch checkpoint: {_first_sentence(message)}"
    return (
        f"holds {found[1]}, which is not weights: refused, nothing in the file was run "
        "(save the state_dict alone with torch.save)"
    )


def _first_sentence(error: object) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__


def _unwrap(path: Path, document: Any) -> tuple[Mapping[Any, Any], str]:
    if not isinstance(document, Mapping):
        raise CheckpointError(f"{path}: holds a {type(document).__name__}, not a dict of weights")
    for wrapper in WRAPPERS:
        inner = document.get(wrapper)
        if isinstance(inner, Mapping) and _has_tensors(inner):
            return inner, wrapper
    if _has_tensors(document):
        return document, ""
    keys = ", ".join(quoted(key, 30) for key in list(document)[:6]) or "nothing"
    raise CheckpointError(f"{path}: no weights found: it holds {keys}; expected {', '.join(WRAPPERS)} or tensors")


def _has_tensors(mapping: Mapping[Any, Any]) -> bool:
    return any(isinstance(key, str) and isinstance(value, Tensor) for key, value in mapping.items())


def _strip_prefixes(path: Path, weights: Mapping[Any, Any]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Take `module.` and `model.`, which trainers put before every key, off the keys that have them."""
    state: dict[str, Tensor] = {}
    stripped: list[str] = []
    for key, tensor in weights.items():
        if not (isinstance(key, str) and isinstance(tensor, Tensor)):
            continue
        name = key
        while prefix := next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None):
            name = name.removeprefix(prefix)
            if prefix not in stripped:
                stripped.append(prefix)
        if name in state:
            raise CheckpointError(f"{path}: key {quoted(name)} is there twice, with and without a prefix")
        state[name] = tensor
    return state, tuple(stripped)


def _facts(document: Mapping[Any, Any]) -> dict[str, Any]:
    """Short plain values beside the weights; file contents, so only what JSON can hold."""
    facts: dict[str, Any] = {}
    for key, value in document.items():
        plain = isinstance(value, bool | int | str) or (isinstance(value, float) and isfinite(value))
        if isinstance(key, str) and plain and len(facts) < _MAX_FACTS:
            facts[key[:80]] = value[:200] if isinstance(value, str) else value
    return facts


def _notes(info: CheckpointInfo) -> list[str]:
    notes = []
    if info.wrapper == "state_dict_ema":
        notes.append("took the averaged weights (state_dict_ema), which published scores are measured with")
    if info.stripped:
        notes.append(f"took the prefix {' and '.join(info.stripped)} off the keys")
    return notes
