"""Reads config.json and labels.json of a bundle and checks its files, so that every failure is one BundleError."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from io import BufferedReader
from pathlib import Path

from ..errors import BundleError, stand_in
from .config import BundleConfig
from .graph_record import GRAPH
from .labels import Label, parse_labels
from .program_record import OPERATORS
from .strict_json import MAX_JSON_BYTES, parse_json

CONFIG, LABELS, WEIGHTS = "config.json", "labels.json", "model.safetensors"


def read_config(path: str | Path) -> BundleConfig:
    """Read config.json and labels.json alone: quick for any model; weights and graph are not verified.

    Raises:
        BundleError: as `load_bundle`.
    """
    path = Path(path)
    with naming(path):
        return read_unnamed(path)


def read_single_label(path: str | Path, command: str, *, embeds: bool = False) -> BundleConfig:
    """`read_config` for a command that judges by one class an image, or else by embeddings if it `embeds`; BundleError
    where an image has several classes, or none."""
    config = read_config(path)
    if config.output_meaning != "softmax" and not (embeds and config.embeds):
        raise BundleError(f"bundle {path}: problem_type {config.problem_type}: {command} judges by one class an image")
    return config


@contextmanager
def naming(path: Path) -> Iterator[None]:
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
def about(name: str) -> Iterator[None]:
    """Turn every ValueError inside into a BundleError that begins with the file's name."""
    try:
        yield
    except ValueError as error:
        raise BundleError(f"{name}: {error}") from None


def read_unnamed(path: Path) -> BundleConfig:
    """`read_config` for use inside `naming`."""
    if not path.exists():
        raise BundleError("no such folder")
    if not path.is_dir():
        raise BundleError("is a file, a bundle is a folder")
    document = _read_json_file(path / CONFIG)
    with about(CONFIG):
        config = BundleConfig.from_dict(parse_json(document))
    data = _read_json_file(path / LABELS)
    check_digest(LABELS, hashlib.sha256(data).hexdigest(), config)
    with about(LABELS):
        labels = _labels(data)
    check_label_count(labels, config)
    for name in set(config.files) - {WEIGHTS, LABELS, GRAPH, OPERATORS}:
        with open_file(path / name) as file:
            check_digest(name, hashlib.file_digest(file, "sha256").hexdigest(), config)
    for name in {WEIGHTS, GRAPH, OPERATORS} & set(config.files):  # who reads them checks them
        open_file(path / name).close()
    size = sum((path / name).stat().st_size for name in (CONFIG, *config.files))
    return replace(config, labels=labels, bytes_on_disk=size)


def open_file(file: Path) -> BufferedReader:
    """Open a file of a bundle; a missing one, or a folder or a pointer in its place, is a BundleError."""
    if not file.is_file():
        raise BundleError(f"{file.name}: no such file")
    with open(file, "rb") as stream:
        if what := stand_in(stream.read(64)):
            raise BundleError(f"{file.name}: {what}")
    return open(file, "rb")


@lru_cache(maxsize=2)  # a labels.json may have megabytes
def _labels(data: bytes) -> tuple[Label, ...]:
    """The labels of a labels.json: a start reads a bundle's more than once, and many bundles have the same."""
    return parse_labels(parse_json(data))


def _read_json_file(file: Path) -> bytes:
    with open_file(file) as stream:
        return bytes(stream.read(MAX_JSON_BYTES + 1))


def check_digest(name: str, digest: str, config: BundleConfig) -> None:
    """Raise BundleError where a file's sha256 is not the one that the config names."""
    if digest != config.files[name]:
        raise BundleError(f"{name}: sha256 is {digest[:12]}..., {CONFIG} says {config.files[name][:12]}...")


def check_label_count(labels: Sequence[Label], config: BundleConfig) -> None:
    """Raise BundleError where there is not one label for each class."""
    if len(labels) != config.num_classes:
        raise BundleError(f"{LABELS}: {len(labels)} labels, the model has {config.num_classes} classes")
