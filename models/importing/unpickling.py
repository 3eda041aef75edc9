"""Unpickles torch files with torch's weights-only unpickler, which builds data and nothing else."""

import argparse
import pickle
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointError


class _StandIn:
    """Stands in for an object that trainers store beside the weights; it keeps nothing and does nothing."""

    def __new__(cls, *args: object) -> "_StandIn":
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None:
        """Drop the state."""


def _without_factory(*args: object) -> dict[Any, Any]:
    """Stands in for defaultdict: a plain dict."""
    return {}


_IDLE = {
    "omegaconf.base": ("ContainerMetadata", "Metadata"),
    "omegaconf.dictconfig": ("DictConfig",),
    "omegaconf.listconfig": ("ListConfig",),
    "omegaconf.nodes": (
        "AnyNode",
        "BooleanNode",
        "BytesNode",
        "EnumNode",
        "FloatNode",
        "IntegerNode",
        "InterpolationResultNode",
        "PathNode",
        "StringNode",
    ),
    "pytorch_lightning.callbacks.early_stopping": ("EarlyStopping",),
    "pytorch_lightning.callbacks.model_checkpoint": ("ModelCheckpoint",),
    "pathlib": ("Path", "PosixPath", "PurePosixPath", "PureWindowsPath", "WindowsPath"),
    "numpy": ("dtype",),
    "numpy.core.multiarray": ("scalar",),
    "numpy._core.multiarray": ("scalar",),
    "typing": ("Any",),
    "builtins": ("bool", "dict", "float", "int", "list", "str", "tuple"),
}
"""Names that a pickle may hold beside weights, by module: hyper-parameters of Lightning, paths, scalars."""

_DICTS = (
    "lightning.fabric.utilities.data.AttributeDict",
    "lightning_fabric.utilities.data.AttributeDict",
    "pytorch_lightning.utilities.parsing.AttributeDict",
)
"""Kinds of dict that a plain dict stands in for."""

# Each name gets a class of its own: classes are dict keys in some files, and two must not become one.
_ALLOWED: list[Any] = [
    argparse.Namespace,
    *((type(name, (_StandIn,), {}), f"{module}.{name}") for module, names in _IDLE.items() for name in names),
    *((dict, name) for name in _DICTS),
    (_without_factory, "collections.defaultdict"),
]


def unpickle(path: Path) -> Any:
    """Read a torch file: tensors on the CPU, plain data, argparse.Namespace (timm stores one).

    Nothing that a file names is imported: the names of `_IDLE` and `_DICTS` become stand-ins, all others are refused.

    Raises:
        CheckpointError: damaged, a program, or with anything but data.
    """
    mapped = zipfile.is_zipfile(path)
    if mapped:
        _check_archive(path)
    try:
        with torch.serialization.safe_globals(_ALLOWED), warnings.catch_warnings():
            # The warnings are about pickle protocols; what cannot be read is an error anyway.
            warnings.simplefilter("ignore", UserWarning)
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise CheckpointError(f"{path}: {_refusal(str(error))}") from error
    except (RuntimeError, EOFError, ValueError, AttributeError, TypeError, LookupError, OSError) as error:
        # Damaged files fail in torch in many ways.
        raise CheckpointError(f"{path}: damaged or not a torch checkpoint: {first_sentence(error)}") from error


def first_sentence(error: object) -> str:
    """The beginning of an error's message, on one line."""
    return " ".join(str(error).split()).split(". ")[0][:160] or type(error).__name__


def _check_archive(path: Path) -> None:
    """Refuse a zip file that torch.save did not write, and say what it is."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.partition("/")[2] for name in archive.namelist()]
            whole = archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{path}: damaged or not a torch checkpoint: {first_sentence(error)}") from error
    if "constants.pkl" in names:
        raise CheckpointError(
            f"{path}: a TorchScript archive, which is a program: nothing in it was run (save the model's state_dict "
            "alone with torch.save)"
        )
    if "data.pkl" not in names and any(name.endswith(".npy") for name in whole):
        raise CheckpointError(f"{path}: an archive of NumPy arrays, not of torch (timm's names have them converted)")


def _refusal(message: str) -> str:
    match = re.search(r"GLOBAL ([\w.]+)", message)
    if match is None:
        return f"damaged or not a torch checkpoint: {first_sentence(message)}"
    return (
        f"holds {match[1]}, which is not weights: refused, nothing in the file was run "
        "(save the state_dict alone with torch.save)"
    )
