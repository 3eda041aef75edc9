"""Unpickles torch files with torch's weights-only unpickler: data and nothing else."""

import argparse
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointError


def unpickle(path: Path, *, mapped: bool) -> Any:
    """What a torch file holds: tensors on the CPU, plain data, argparse.Namespace (timm stores one).

    Args:
        mapped: map the tensors' bytes instead of reading them; only zip files can be.

    Raises:
        CheckpointError: damaged, or holding anything else.
    """
    try:
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            # About pickle protocols and TorchScript archives: what cannot be read is an error here anyway.
            warnings.simplefilter("ignore", UserWarning)
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
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
        raise CheckpointError(f"{path}: damaged or not a torch checkpoint: {first_sentence(error)}") from error


def first_sentence(error: object) -> str:
    """The beginning of an error's message, on one line."""
    return " ".join(str(error).split())[:160] or type(error).__name__


def _refusal(message: str) -> str:
    found = re.search(r"GLOBAL ([\w.]+)", message)
    if found is None:
        return f"damaged or not a torch checkpoint: {first_sentence(message)}"
    return (
        f"holds {found[1]}, which is not weights: refused, nothing in the file was run "
        "(save the state_dict alone with torch.save)"
    )
