"""Reads the weights of a checkpoint, whatever its container."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..architectures.registry import is_model
from ..bundle.durable import sha256_of
from ..bundle.safetensors_file import read_tensors
from ..bundle.strict_json import canonical_json
from ..errors import CheckpointError, quoted, stand_in
from .card import ModelCard, read_card
from .source import CheckpointSource, find_source, read_json
from .transformers.model_card import read_transformers_card
from .unpickling import first_sentence, unpickle
from .wrappers import AVERAGED, averages_of, facts_of, models_own, strip_prefixes, tensors_of, unwrap, with_averages


@dataclass(frozen=True)
class CheckpointInfo:
    """What is known of a checkpoint beside its weights.

    Args:
        file: name of the file or folder.
        sha256: digest of the file; for several files, of {name: sha256} as canonical JSON.
        container: `torch zip`, `torch legacy` or `safetensors`, after the layout where there are several files.
        wrapper: the member that holds the weights; empty where the file itself does.
        stripped: prefixes taken off the keys.
        facts: plain numbers and texts stored beside the weights, such as epoch.
        notes: what was done to find the weights, in sentences.
        card: what a config.json beside the weights says of the model.
        commit: of the repository on the hub that they were fetched from; empty for files.
    """

    file: str
    sha256: str
    container: str
    wrapper: str
    stripped: tuple[str, ...]
    facts: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    card: ModelCard | None = None
    commit: str = ""


def read_checkpoint(path: str | Path) -> tuple[dict[str, Tensor], CheckpointInfo]:
    """Read the weights of a checkpoint on the CPU.

    The format of a file is recognised by its content: torch (.pth, .pth.tar, .pt, .ckpt, .bin) or safetensors. A folder
    is Hugging Face's (config.json, model.safetensors or pytorch_model.bin, whole or in shards with an index) or
    DeepSpeed's. Pickles are read with torch's weights-only unpickler, which builds tensors, plain data,
    argparse.Namespace and nothing else.

    Raises:
        CheckpointError: no such file, not a checkpoint, damaged, without tensors, or holding anything but data.
    """
    path = Path(path)
    source = find_source(path)
    files = [_read_file(file) for file in source.files]
    document = files[0].document if source.shards is None else _joined(path, source, files)
    weights, wrapper = unwrap(path, document)
    state, notes = _models_weights(path, document, tensors_of(path, weights), wrapper)
    state, stripped = strip_prefixes(path, state)
    if wrapper in AVERAGED:
        notes.append(f"took the averaged weights ({wrapper}), which published scores are measured with")
    if stripped:
        notes.append(f"took the prefix {' and '.join(stripped)} off the keys")
    card = None if source.card is None else _card(source.card)
    if card is not None and card.convert is not None:
        state = card.convert(state)
        notes.append(f"renamed the keys of the transformers library to timm's of {card.arch}")
    info = CheckpointInfo(
        path.name or str(path),
        _digest(source, files),
        f"{source.layout}, {files[0].container}" if source.layout else files[0].container,
        wrapper,
        stripped,
        {} if weights is document else facts_of(document),
        tuple(notes),
        card,
    )
    return state, info


def _card(path: Path) -> ModelCard:
    """A config.json that timm or the transformers library wrote."""
    document = read_json(path)
    if isinstance(document, dict) and isinstance(document.get("model_type"), str) and "architecture" not in document:
        return read_transformers_card(path, document)
    return read_card(path)


@dataclass(frozen=True)
class _File:
    document: Any
    container: str
    sha256: str


def _read_file(path: Path) -> _File:
    container = _container(path)
    try:
        if container == "safetensors":
            file = read_tensors(path)
            return _File(file.tensors, container, file.sha256)
        return _File(unpickle(path), container, sha256_of(path))
    except CheckpointError:
        raise
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: more bytes than there is memory
        raise CheckpointError(f"{path}: {first_sentence(error)}") from error


def _models_weights(
    path: Path, document: Mapping[Any, Any], state: dict[str, Tensor], wrapper: str
) -> tuple[dict[str, Tensor], list[str]]:
    """The model's weights among what a trainer saved, averaged ones where there are any; and notes on them."""
    notes = []
    averages = None if wrapper in AVERAGED else averages_of(document)
    if averages is not None:
        callback, tensors = averages
        state = with_averages(path, state, tensors)
        notes.append(
            f"took the averaged weights of the callback {callback}: {len(tensors)} tensors without names, by order"
        )
    if averages is not None or "pytorch-lightning_version" in document or wrapper == "module":
        state, others = models_own(state)
        if others:
            notes.append(f"left out {len(others)} tensors beside the model, such as {quoted(others[0])}")
    return state, notes


def _joined(path: Path, source: CheckpointSource, files: list[_File]) -> dict[str, Tensor]:
    """The tensors of all shards; the index names the shard of each."""
    assert source.shards is not None
    joined: dict[str, Tensor] = {}
    for file, read in zip(source.files, files, strict=True):
        document = read.document if isinstance(read.document, Mapping) else {}
        named = [key for key, name in source.shards.items() if name == file.name]
        missing = next((key for key in named if not isinstance(document.get(key), Tensor)), None)
        if missing is not None:
            raise CheckpointError(f"{path}: {file.name} does not hold {quoted(missing)}, which the index says it does")
        joined |= {key: document[key] for key in named}
    return joined


def _digest(source: CheckpointSource, files: list[_File]) -> str:
    if len(files) == 1:
        return files[0].sha256
    digests = {path.name: file.sha256 for path, file in zip(source.files, files, strict=True)}
    return hashlib.sha256(canonical_json(digests)).hexdigest()


def _container(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            head = file.read(265)
    except FileNotFoundError:
        hint = f"; the weights that timm publishes are fetched as timm:{path}" if is_model(str(path)) else ""
        raise CheckpointError(f"checkpoint {path}: no such file{hint}") from None
    except OSError as error:
        raise CheckpointError(f"checkpoint {path}: {error.strerror}") from None
    if what := stand_in(head):
        raise CheckpointError(f"{path}: {what}")
    if head.startswith(b"PK\x03\x04"):
        return "torch zip"
    if head[8:9] == b"{" or path.suffix == ".safetensors":
        return "safetensors"
    if head.startswith(b"\x80"):
        return "torch legacy"
    if head[257:262] == b"ustar":
        raise CheckpointError(f"{path}: a tar archive: unpack it first (what is called .pth.tar is none)")
    raise CheckpointError(f"{path}: not a checkpoint: neither a torch file nor safetensors (begins with {head[:8]!r})")
