"""Reads and writes bundles: folders with model.safetensors, config.json and labels.json.

A bundle is written whole or not at all. Reading executes nothing: format, hashes, keys, shapes and dtypes are
checked, and every failure is one BundleError.
"""

import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import BufferedReader
from pathlib import Path

from torch import Tensor, nn

from ..architectures.meta_init import built_on_meta
from ..architectures.registry import create_model
from ..architectures.token_blocks import token_plan_of
from ..errors import BundleError, quoted
from ..layers.layer_spec import layer_specs_of
from .config import BundleConfig, check_preprocess
from .durable import exchange, sha256_of, sync
from .golden import golden_record
from .labels import Label, labels_document, parse_labels
from .safetensors_file import TensorEntry, read_tensors, write_tensors
from .storage import as_stored, loaded_tensors, stored_tensors
from .strict_json import MAX_JSON_BYTES, parse_json, readable_json

CONFIG, LABELS, WEIGHTS = "config.json", "labels.json", "model.safetensors"
EXTRAS = ("report.html", "report.json")
"""Further files that a bundle may hold: no hash covers them, and the model does not depend on them."""

Extras = Mapping[str, bytes] | Callable[[BundleConfig], Mapping[str, bytes]]
"""Extra files by name, or a function that makes them from the config, which then has its version and size."""


def load_bundle(path: str | Path) -> tuple[nn.Module, BundleConfig]:
    """Read a bundle: the model, float32 on the CPU, in eval mode and without gradients, and its config.

    Raises:
        BundleError: one line that names the bundle and the file, key or value that is wrong.
    """
    path = Path(path)
    with _naming(path):
        config = _read_config(path)
        model = empty_model(config)
        with _about(CONFIG):
            expected = stored_tensors(model, config.storage)
        with _about(WEIGHTS):
            file = read_tensors(path / WEIGHTS, lambda found: _check_tensors(expected, found))
        _check_digest(WEIGHTS, file.sha256, config)
        with _about(WEIGHTS):
            tensors = loaded_tensors(model, config.storage, file.tensors)
        model.load_state_dict(tensors, strict=True, assign=True)
        _check_complete(model)
    return model.eval().requires_grad_(False), config


def read_config(path: str | Path) -> BundleConfig:
    """Read config.json and labels.json alone: this is quick for any model, and does not verify the weights.

    Raises:
        BundleError: as `load_bundle`.
    """
    path = Path(path)
    with _naming(path):
        return _read_config(path)


def empty_model(config: BundleConfig) -> nn.Module:
    """Build the model of a config on the meta device, to count it or to assign weights to it.

    Raises:
        BundleError: the config describes no model that can be built.
    """
    try:
        return built_on_meta(
            lambda: create_model(config.arch, layer_specs=config.structure, tokens=config.tokens, **config.arch_args)
        )
    except (ValueError, TypeError, RuntimeError, AssertionError, ArithmeticError, LookupError, AttributeError) as error:
        # arch_args are data from a file, so an error of the constructor is an error of the file.
        raise BundleError(f"{CONFIG}: cannot build {quoted(config.arch)}: {_one_line(error)}") from error


def save_bundle(
    path: str | Path,
    model: nn.Module,
    config: BundleConfig,
    labels: Sequence[Label] | None = None,
    *,
    overwrite: bool = False,
    extras: Extras | None = None,
    storage: Mapping[str, str] | None = None,
) -> BundleConfig:
    """Write a bundle, whole or not at all; returns `config` with labels, storage, hashes and size filled in.

    Args:
        model: a model of `config.arch`, structured as `config.structure` says, with original keys.
        labels: one for each class; those of `config` when None.
        overwrite: replace a bundle that is there already. Anything else at `path` is never replaced.
        extras: files of EXTRAS to write with it, or a function that makes them from the finished config. They count
            neither for the version nor for the size.
        storage: precision of the weights by layer, as in `stored_tensors`; all float32 when None.

    Raises:
        BundleError: labels, structure, keys, shapes or extras that do not fit, weights that the storage cannot hold,
            or a path that is taken.
    """
    path = Path(path)
    with _naming(path):
        _check_target(path, overwrite)
        labels = tuple(config.labels if labels is None else labels)
        config = replace(config, labels=labels, storage=dict(storage or {}))
        _check_saving(model, config)
        size = int(config.preprocess["size"])
        config = replace(config, golden=golden_record(as_stored(model, config.storage), size))
        folder = path.parent / f".{path.name}.{secrets.token_hex(4)}.partial"
        path.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
        try:
            config = _write(folder, model, config)
            _write_extras(folder, extras(config) if callable(extras) else extras or {})
            _move(folder, path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return config


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn every error inside into one BundleError that begins with the bundle's path."""
    try:
        yield
    except OSError as error:
        name = Path(os.fsdecode(error.filename)).name if error.filename else ""
        what = f"{name}: {error.strerror}" if name and name != path.name else str(error.strerror)
        raise BundleError(f"bundle {path}: {what}") from error
    except ValueError as error:
        raise BundleError(f"bundle {path}: {error}") from error


@contextmanager
def _about(name: str) -> Iterator[None]:
    """Turn every ValueError inside into a BundleError that begins with the file's name."""
    try:
        yield
    except ValueError as error:
        raise BundleError(f"{name}: {error}") from None


def _read_config(path: Path) -> BundleConfig:
    if not path.exists():
        raise BundleError("no such folder")
    if not path.is_dir():
        raise BundleError("is a file, a bundle is a folder")
    document = _read_json_file(path / CONFIG)
    with _about(CONFIG):
        config = BundleConfig.from_dict(parse_json(document))
    data = _read_json_file(path / LABELS)
    _check_digest(LABELS, hashlib.sha256(data).hexdigest(), config)
    with _about(LABELS):
        labels = parse_labels(parse_json(data))
    _check_label_count(labels, config)
    for name in set(config.files) - {WEIGHTS, LABELS}:
        with _open(path / name) as file:
            _check_digest(name, hashlib.file_digest(file, "sha256").hexdigest(), config)
    if not (path / WEIGHTS).is_file():
        raise BundleError(f"{WEIGHTS}: no such file")
    size = sum((path / name).stat().st_size for name in (CONFIG, *config.files))
    return replace(config, labels=labels, bytes_on_disk=size)


def _open(file: Path) -> BufferedReader:
    if not file.is_file():
        raise BundleError(f"{file.name}: no such file")
    return open(file, "rb")


def _read_json_file(file: Path) -> bytes:
    with _open(file) as stream:
        return bytes(stream.read(MAX_JSON_BYTES + 1))


def _check_digest(name: str, digest: str, config: BundleConfig) -> None:
    if digest != config.files[name]:
        raise BundleError(f"{name}: sha256 is {digest[:12]}..., {CONFIG} says {config.files[name][:12]}...")


def _check_label_count(labels: Sequence[Label], config: BundleConfig) -> None:
    if len(labels) != config.num_classes:
        raise BundleError(f"{LABELS}: {len(labels)} labels, the model has {config.num_classes} classes")


def _check_tensors(expected: Mapping[str, Tensor], found: Mapping[str, Tensor | TensorEntry]) -> None:
    for key in expected:
        if key not in found:
            raise BundleError(f"key {key} is missing ({len(expected)} expected, {len(found)} found)")
    for key in found:
        if key not in expected:
            raise BundleError(f"key {quoted(key)} is not one of the model's {len(expected)}")
    for key, tensor in expected.items():
        if tuple(found[key].shape) != tuple(tensor.shape):
            raise BundleError(f"{key} has shape {list(found[key].shape)}, the model needs {list(tensor.shape)}")
        if found[key].dtype != tensor.dtype:
            raise BundleError(f"{key} is {found[key].dtype}, the model needs {tensor.dtype}")


def _check_complete(model: nn.Module) -> None:
    """Refuse a model with a meta tensor left: a buffer outside the state dict that was not computed."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise BundleError(f"{name} is not part of the model's state dict and was not loaded")


def _check_target(path: Path, overwrite: bool) -> None:
    if not (path.exists() or path.is_symlink()):
        return
    if not (path.is_dir() and (path / CONFIG).is_file() and (path / WEIGHTS).is_file()):
        if path.is_dir() and not any(path.iterdir()):
            return
        raise BundleError("exists and is not a bundle: not overwritten")
    if not overwrite:
        raise BundleError("exists already: ask for overwriting to replace it")


def _check_saving(model: nn.Module, config: BundleConfig) -> None:
    check_preprocess(config.preprocess)
    _check_label_count(config.labels, config)
    parse_labels(labels_document(config.labels))
    if odd := layer_specs_of(model).items() ^ dict(config.structure).items():
        raise BundleError(f"structure: layer {min(name for name, _ in odd)} of the model is not as the config says")
    if token_plan_of(model) != config.tokens:
        raise BundleError("tokens: the model does not compute the tokens that the config says")
    _check_tensors(empty_model(config).state_dict(), model.state_dict())


def _write(folder: Path, model: nn.Module, config: BundleConfig) -> BundleConfig:
    write_tensors(folder / WEIGHTS, stored_tensors(model, config.storage))
    (folder / LABELS).write_bytes(readable_json(labels_document(config.labels)))
    config = replace(config, files={name: sha256_of(folder / name) for name in (WEIGHTS, LABELS)})
    (folder / CONFIG).write_bytes(readable_json(config.to_dict()))
    for name in (WEIGHTS, LABELS, CONFIG):
        sync(folder / name)
    return _read_config(folder)  # as a reader will see it, so that saving and loading cannot disagree


def _write_extras(folder: Path, extras: Mapping[str, bytes]) -> None:
    for name, data in extras.items():
        if name not in EXTRAS:
            raise BundleError(
                f"{quoted(name)} cannot lie in a bundle: only {', '.join(EXTRAS)} can beside its own files"
            )
        (folder / name).write_bytes(data)
        sync(folder / name)


def _move(folder: Path, path: Path) -> None:
    """Put the finished folder in place; an old bundle is replaced atomically where the file system can do that."""
    sync(folder)
    if not path.exists():
        folder.rename(path)
    elif exchange(folder, path):
        _remove(folder)
    else:
        old = folder.with_suffix(".old")
        path.rename(old)
        try:
            folder.rename(path)
        except OSError:
            old.rename(path)
            raise
        _remove(old)
    sync(path.parent)


def _remove(old: Path) -> None:
    old.unlink() if old.is_symlink() else shutil.rmtree(old)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
