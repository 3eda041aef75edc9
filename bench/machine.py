"""The process that measures: what its figures belong to, their file, torch's threads, and its stderr silenced."""

import json
import os
import platform
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from ..inference.device import processor_name
from ..models.bundle.provenance import library_versions

_ENVIRONMENT = ("OMP_", "MKL_", "KMP_", "GOMP_", "MALLOC_", "LD_PRELOAD", "DNNL_", "ONEDNN_")


def machine() -> dict[str, Any]:
    """What figures belong to: the processor, its cores, and the environment variables that change them."""
    return {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "bfloat16_instructions": bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()),
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith(_ENVIRONMENT)},
    }


def about(benchmark: str, load_before: tuple[float, float, float], packages: Iterable[str] = ()) -> dict[str, Any]:
    """The head of a benchmark's document, made when all is measured.

    Args:
        load_before: `os.getloadavg` before it.
        packages: whose versions it has besides, where they are installed.
    """
    versions = library_versions()
    for package in packages:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {
        "benchmark": benchmark,
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "load_average": {"before": load_before, "after": os.getloadavg()},
        "versions": versions,
    }


def save(path: Path, document: Mapping[str, Any]) -> None:
    """Write a benchmark's document whole, or leave the one that is there."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(document, indent=1) + "\n")
    partial.replace(path)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """torch computes with so many threads of this process; the number from before comes back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def quiet_stderr() -> Iterator[None]:
    """Nothing written to file descriptor 2 is seen, such as what C libraries say of bodies that are bad on purpose."""
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(nowhere)
        os.close(kept)
