"""Reads and writes bundles: folders with config.json, labels.json and model.safetensors, a graph, or both.

A bundle is written whole or not at all. Reading executes nothing: format, hashes, keys, shapes and dtypes are
checked, and every failure is one BundleError.
"""

import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from ..accounting import dense_equivalent_bytes, macs
from ..architectures.meta_init import built_on_meta
from ..architectures.registry import create_model
from ..architectures.token_blocks import token_plan_of
from ..errors import BundleError, quoted
from ..layers.select import layer_specs_of
from .config import BundleConfig, check_preprocess
from .durable import exchange, sha256_of, sync
from .golden import golden_record
from .graph import OnnxGraph, check_graph, read_graph
from .graph_record import GRAPH
from .labels import Label, labels_document, parse_labels
from .program_record import ACTIVATIONS, OPERATORS, ProgramRecord
from .reading import CONFIG, LABELS, WEIGHTS, about, check_digest, check_label_count, naming, read_unnamed
from .safetensors_file import TensorEntry, read_tensors, write_tensors
from .storage import as_stored, loaded_tensors, stored_tensors
from .strict_json import readable_json

EXTRAS = ("report.html", "report.json")
"""Further files that a bundle may hold: no hash covers them, and the model does not depend on them."""

Extras = Mapping[str, bytes] | Callable[[BundleConfig], Mapping[str, bytes]]
"""Extra files by name, or a function that makes them from the config, which then has its version and size."""


def load_bundle(path: str | Path, config: BundleConfig | None = None) -> tuple[nn.Module, BundleConfig]:
    """Read a bundle: the model, float32 on the CPU, in eval mode and without gradients, and its config.

    Args:
        config: the bundle's, where it was read before; files of any other version do not fit it.

    Raises:
        BundleError: one line that names the bundle and the file, key or value that is wrong.
    """
    path = Path(path)
    with naming(path):
        config = config or read_unnamed(path)
        if config.graph is not None:
            read_graph(path, config)
        if config.graph_only:
            raise BundleError(f"holds a graph alone ({GRAPH}), without the weights that this needs ({WEIGHTS})")
        model = empty_model(config)
        with about(CONFIG):
            expected = stored_tensors(model, config.storage)
        with about(WEIGHTS):
            file = read_tensors(path / WEIGHTS, lambda entries: _check_tensors(expected, entries))
        check_digest(WEIGHTS, file.sha256, config)
        with about(WEIGHTS):
            tensors = loaded_tensors(model, config.storage, file.tensors)
        model.load_state_dict(tensors, strict=True, assign=True)
        _check_complete(model)
    return model.eval().requires_grad_(False), config


def verified_model(path: str | Path) -> tuple[nn.Module, BundleConfig]:
    """Read a whole bundle to count its model, which is on the meta device where the bundle holds a graph alone.

    Raises:
        BundleError: as `load_bundle`.
    """
    path = Path(path)
    with naming(path):
        config = read_unnamed(path)
        if config.graph_only:
            read_graph(path, config)
            return empty_model(config), config
    return load_bundle(path)


def empty_model(config: BundleConfig) -> nn.Module:
    """Build the model of a config on the meta device, to count it or to assign weights to it.

    Raises:
        BundleError: the config describes no model that can be built.
    """
    try:
        return built_on_meta(
            lambda: create_model(
                config.arch,
                widths=config.widths,
                layer_specs=config.structure,
                tokens=config.tokens,
                **config.arch_args,
            )
        )
    except (ValueError, TypeError, RuntimeError, AssertionError, ArithmeticError, LookupError, AttributeError) as error:
        # arch_args are data from a file, so an error of the constructor is an error of the file.
        raise BundleError(f"{CONFIG}: cannot build {quoted(config.arch)}: {_one_line(error)}") from error


def model_counts(model: nn.Module, size: int) -> dict[str, int]:
    """COUNTS of a model, which may be on the meta device, for images of `size` px a side."""
    return {
        "macs": macs(model, size).total,
        "dense_values": dense_equivalent_bytes(model) // torch.float32.itemsize,
    }


def save_bundle(
    path: str | Path,
    model: nn.Module | None,
    config: BundleConfig,
    labels: Sequence[Label] | None = None,
    *,
    overwrite: bool = False,
    extras: Extras | None = None,
    storage: Mapping[str, str] | None = None,
    graph: OnnxGraph | None = None,
    program: ProgramRecord | None = None,
    activations: Mapping[str, Tensor] | None = None,
    operators: bytes | None = None,
) -> BundleConfig:
    """Write a bundle, whole or not at all; returns `config` with labels, storage, hashes and size filled in.

    Args:
        model: a model of `config.arch`, structured as `config.structure` says, with original keys; None for a bundle
            that holds its graph alone.
        labels: one for each class; those of `config` when None.
        overwrite: replace a bundle that is there already. Anything else at `path` is never replaced.
        extras: files of EXTRAS to write with it, or a function that makes them from the finished config. They count
            neither for the version nor for the size.
        storage: precision of the weights by layer, as in `stored_tensors`; all float32 when None.
        graph: a graph of the model, which has its own record. One that the bundle of `config` had is not taken over.
        program: how the CPU kernels are to compute the weights; not taken over either.
        activations: the content of ACTIVATIONS, for a program of int8.
        operators: the content of OPERATORS, for a server without torch.

    Raises:
        BundleError: labels, structure, keys, shapes, graph or extras that do not fit, weights that the storage cannot
            hold, or a path that is taken.
    """
    path = Path(path)
    with naming(path):
        _check_target(path, overwrite)
        labels = tuple(config.labels if labels is None else labels)
        record = None if graph is None else graph.record
        config = replace(config, labels=labels, storage=dict(storage or {}), graph=record, program=program, golden={})
        empty = _check_saving(model, config, graph)
        counts = model_counts(empty, int(config.preprocess["size"])) if record or operators else {}
        if record is not None:
            config = replace(config, graph=replace(record, counts=counts))
        if program is not None and operators is not None:
            config = replace(config, program=replace(program, counts=counts))
        if model is not None:
            size = int(config.preprocess["size"])
            config = replace(config, golden=golden_record(as_stored(model, config.storage), size))
        folder = path.parent / f".{path.name}.{secrets.token_hex(4)}.partial"
        path.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
        try:
            config = _write(folder, model, config, graph, activations, operators)
            _write_extras(folder, extras(config) if callable(extras) else extras or {})
            _move(folder, path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return config


def _check_tensors(expected: Mapping[str, Tensor], entries: Mapping[str, Tensor | TensorEntry]) -> None:
    for key in expected:
        if key not in entries:
            raise BundleError(f"key {key} is missing ({len(expected)} expected, {len(entries)} found)")
    for key in entries:
        if key not in expected:
            raise BundleError(f"key {quoted(key)} is not one of the model's {len(expected)}")
    for key, tensor in expected.items():
        if tuple(entries[key].shape) != tuple(tensor.shape):
            raise BundleError(f"{key} has shape {list(entries[key].shape)}, the model needs {list(tensor.shape)}")
        dtype, needed = (str(either.dtype).removeprefix("torch.") for either in (entries[key], tensor))
        if dtype != needed:
            raise BundleError(f"{key} is {dtype}, the model needs {needed}")


def _check_complete(model: nn.Module) -> None:
    """Refuse a model with a meta tensor left: a buffer outside the state dict that was not computed."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise BundleError(f"{name} is not part of the model's state dict and was not loaded")


def _check_target(path: Path, overwrite: bool) -> None:
    if not (path.exists() or path.is_symlink()):
        return
    held = any((path / name).is_file() for name in (WEIGHTS, GRAPH))
    if not (path.is_dir() and (path / CONFIG).is_file() and held):
        if path.is_dir() and not any(path.iterdir()):
            return
        raise BundleError("exists and is not a bundle: not overwritten")
    if not overwrite:
        raise BundleError("exists already: ask for overwriting to replace it")


def _check_saving(model: nn.Module | None, config: BundleConfig, graph: OnnxGraph | None) -> nn.Module:
    """Refuse what cannot be saved; return the config's model on the meta device."""
    check_preprocess(config.preprocess)
    check_label_count(config.labels, config)
    parse_labels(labels_document(config.labels))
    if graph is not None:
        check_graph(graph, config)
    if model is None:
        if graph is None:
            raise BundleError("neither weights nor a graph to save")
        return empty_model(config)
    if odd := layer_specs_of(model).items() ^ dict(config.structure).items():
        raise BundleError(f"structure: layer {min(name for name, _ in odd)} of the model is not as the config says")
    if token_plan_of(model) != config.tokens:
        raise BundleError("tokens: the model does not compute the tokens that the config says")
    empty = empty_model(config)
    _check_tensors(empty.state_dict(), model.state_dict())
    return empty


def _write(
    folder: Path,
    model: nn.Module | None,
    config: BundleConfig,
    graph: OnnxGraph | None,
    activations: Mapping[str, Tensor] | None,
    operators: bytes | None,
) -> BundleConfig:
    files = [LABELS]
    (folder / LABELS).write_bytes(readable_json(labels_document(config.labels)))
    if model is not None:
        files.append(WEIGHTS)
        write_tensors(folder / WEIGHTS, stored_tensors(model, config.storage))
    if graph is not None:
        files.append(GRAPH)
        (folder / GRAPH).write_bytes(graph.data)
    if activations is not None:
        files.append(ACTIVATIONS)
        write_tensors(folder / ACTIVATIONS, activations)
    if operators is not None:
        files.append(OPERATORS)
        (folder / OPERATORS).write_bytes(operators)
    config = replace(config, files={name: sha256_of(folder / name) for name in sorted(files, reverse=True)})
    (folder / CONFIG).write_bytes(readable_json(config.to_dict()))
    for name in (*files, CONFIG):
        sync(folder / name)
    return read_unnamed(folder)  # as a reader will see it, so that saving and loading cannot disagree


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
