"""Reads the weights of a checkpoint, whatever container they lie in."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import CheckpointError
from ..tensorfile import read_tensors
from .unpickling import first_sentence, unpickle
from .wrappers import facts_of, strip_prefixes, unwrap


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
            document = unpickle(path, mapped=container == "torch zip")
            with open(path, "rb") as stream:
                sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    except CheckpointError:
        raise
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: more bytes than there is memory
        raise CheckpointError(f"{path}: {first_sentence(error)}") from error
    weights, wrapper = unwrap(path, document)
    state, stripped = strip_prefixes(path, weights)
    facts = {} if weights is document else facts_of(document)
    info = CheckpointInfo(path.name, sha256, path.stat().st_size, container, wrapper, stripped, facts)
    return state, info


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
