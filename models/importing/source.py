"""Finds the files of a checkpoint: one file, its shards, a Hugging Face or a DeepSpeed folder."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..bundle.strict_json import parse_json
from ..errors import CheckpointError, quoted

INDEX = ".index.json"
_HUGGING_FACE = ("model.safetensors", f"model.safetensors{INDEX}", "pytorch_model.bin", f"pytorch_model.bin{INDEX}")
_DEEPSPEED = "mp_rank_00_model_states.pt"
_MAX_SHARDS = 1000


@dataclass(frozen=True)
class CheckpointSource:
    """The files of a checkpoint.

    Args:
        files: files with weights; several files are shards.
        layout: kind of the folder or index, in words; empty for a single file.
        shards: the file of each key, where an index says it.
        card: a Hugging Face config.json beside the weights.
    """

    files: tuple[Path, ...]
    layout: str = ""
    shards: Mapping[str, str] | None = None
    card: Path | None = None


def find_source(path: Path) -> CheckpointSource:
    """Find the files to read at `path`.

    Raises:
        CheckpointError: a folder without weights, or with only a part of them.
    """
    if path.name.endswith(INDEX):
        return _sharded(path, "shards")
    if not path.is_dir():
        return CheckpointSource((path,))
    if (path / "latest").is_file() or _rank_files(path):
        return _deepspeed(path)
    file = next((path / name for name in _HUGGING_FACE if (path / name).is_file()), None)
    if file is None:
        raise CheckpointError(
            f"checkpoint {path}: a folder with none of {', '.join(_HUGGING_FACE)} and none of DeepSpeed's files"
        )
    card = path / "config.json"
    if card.is_file() and _is_bundle(card):
        raise CheckpointError(f"checkpoint {path}: is a bundle of milkweed already")
    layout = "Hugging Face folder"
    source = _sharded(file, layout) if file.name.endswith(INDEX) else CheckpointSource((file,), layout)
    return CheckpointSource(source.files, layout, source.shards, card if card.is_file() else None)


def _is_bundle(card: Path) -> bool:
    document = read_json(card)
    return isinstance(document, dict) and {"format", "arch", "structure"} <= document.keys()


def _sharded(index: Path, layout: str) -> CheckpointSource:
    document = read_json(index)
    shards = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(shards, dict) or not shards:
        raise CheckpointError(f"{index}: has no weight_map, which says in which file each tensor is")
    names = sorted({name for name in shards.values() if isinstance(name, str)})
    odd = next((name for name in shards.values() if not isinstance(name, str) or Path(name).name != name), None)
    if odd is not None or not 1 <= len(names) <= _MAX_SHARDS:
        raise CheckpointError(f"{index}: weight_map names {quoted(odd or names, 40)}, not a file beside it")
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        raise CheckpointError(f"{index}: {len(missing)} of {len(names)} shards are not beside it, first {missing[0]}")
    return CheckpointSource(tuple(index.parent / name for name in names), layout, shards)


def _deepspeed(path: Path) -> CheckpointSource:
    folder = path
    if (path / "latest").is_file():
        with open(path / "latest", "rb") as file:
            tag = file.read(200).decode("utf-8", "replace").strip()
        folder = path / tag
        if not tag or Path(tag).name != tag or not folder.is_dir():
            raise CheckpointError(f"checkpoint {path}: its file latest names {quoted(tag)}, which is no folder in it")
    ranks = _rank_files(folder)
    if not ranks:
        raise CheckpointError(f"checkpoint {folder}: holds no {_DEEPSPEED}")
    if any(name.startswith("zero_pp_rank") for name in ranks):
        raise CheckpointError(
            f"checkpoint {folder}: the weights lie in pieces in {len(ranks)} files of ZeRO stage 3: run the "
            "zero_to_fp32.py that DeepSpeed put beside them, and import what it writes"
        )
    if ranks != [_DEEPSPEED]:
        raise CheckpointError(f"checkpoint {folder}: the model is split over {len(ranks)} devices: merge it first")
    return CheckpointSource((folder / _DEEPSPEED,), "DeepSpeed folder")


def _rank_files(folder: Path) -> list[str]:
    pattern = re.compile(r"(zero_pp_rank_\d+_)?mp_rank_\d+_model_states\.pt")
    return sorted(file.name for file in folder.iterdir() if pattern.fullmatch(file.name))


def read_json(path: Path) -> object:
    """Read a JSON file beside weights.

    Raises:
        CheckpointError: the file cannot be read or is not JSON.
    """
    try:
        return parse_json(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None
