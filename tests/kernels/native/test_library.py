"""What is said of the built library: its stamp, its operators, and why it is refused."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from milkweed.kernels.installation import install_command
from milkweed.kernels.native import library as native
from milkweed.kernels.native.stamp import (
    LIBRARY,
    LibraryStamp,
    file_sha256,
    read_stamp,
    source_hash,
    stamp_path,
    write_stamp,
)

LIBRARY_CHECK = """
import torch
from milkweed.kernels.native import library as native
native.load_library(native.library_path())
cuda = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
given = {"Tensor": torch.zeros(2, 2, 2), "int": 1, "float": 1.0, "bool": False}
for name in %r:
    op = getattr(torch.ops.milkweed, name).default
    arguments = [given.get(str(argument.type)) for argument in op._schema.arguments]
    try:
        op.redispatch(cuda, *arguments)
    except RuntimeError as error:
        print(error)
"""


def test_the_built_library_loads_and_checks_its_tensors() -> None:
    """The CUDA implementations are called with CPU tensors, as far as a machine without a GPU gets."""
    if not LIBRARY.exists() or read_stamp(LIBRARY).source_hash != source_hash():
        pytest.skip("not built from these sources: run `make kernels`")
    environment = {name: value for name, value in os.environ.items() if name != native.VARIABLE}
    firsts = {"monarch_mlp": "x", "short_attention": "qkv", "performer_attention": "kqv", "conv_branch": "tokens"}
    firsts["add_layernorm"] = "x"
    command = [sys.executable, "-c", LIBRARY_CHECK % (tuple(firsts),)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    wanted = [f"{name}: {first} is not on a CUDA device" for name, first in firsts.items()]
    assert done.stdout.splitlines() == wanted


@pytest.fixture
def stamped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A file that passes for a library, on a machine that passes for one with an H200."""

    def make(**changes: Any) -> Path:
        path = tmp_path / "library.so"
        path.write_bytes(b"code")
        stamp = LibraryStamp(file_sha256(path), source_hash(), ("80", "90a"), "13.0", "2.10.0", "key")
        write_stamp(path, replace(stamp, **changes))
        monkeypatch.setenv(native.VARIABLE, str(path))
        return path

    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(torch.ops, "load_library", lambda path: None)
    monkeypatch.setattr(native, "_loaded", {})
    return make


def test_a_library_that_fits_is_loaded_once(stamped: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[Path] = []
    monkeypatch.setattr(torch.ops, "load_library", loads.append)
    path = stamped()
    assert native.native_status() == native.NativeStatus(True, "library.so (90a, CUDA 13.0)", "90a")
    assert native.native_status(0).loaded
    assert loads == [path]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"source_hash": "other"}, f"library.so was built from other sources: {install_command('kernels')}"),
        (
            {"library_sha256": "other"},
            f"library.so is not the file that library.json describes: {install_command('kernels')}",
        ),
        ({"nvcc": "12.9"}, "library.so was built for CUDA 12, this PyTorch for CUDA 13.2"),
        ({"archs": ("80", "120a")}, "no code for compute capability 9.0: library.so was built for 80, 120a"),
        ({"format": 0}, "library.json is not of format 1"),
    ],
)
def test_a_library_that_does_not_fit_is_refused(
    stamped: Callable[..., Path], changes: dict[str, Any], reason: str
) -> None:
    stamped(**changes)
    status = native.native_status()
    assert not status.loaded
    assert status.reason.endswith(reason)
    assert "\n" not in status.reason


def test_a_library_that_is_missing_or_broken(stamped: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = stamped()
    stamp_path(path).write_text(json.dumps([1]))
    assert native.native_status().reason == f"unusable library: {stamp_path(path)} is not of format 1"
    stamp_path(path).unlink()
    assert native.native_status().reason == f"unusable library: {stamp_path(path)} is missing"
    path.unlink()
    assert native.native_status().reason == f"MILKWEED_KERNELS = {path}: no such file"
    monkeypatch.delenv(native.VARIABLE)
    monkeypatch.setattr(native, "LIBRARY", path)
    assert native.native_status().reason == f"not built: {install_command('kernels')}"


def test_a_library_that_the_loader_refuses(stamped: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise OSError("library.so: file too short\nand more")

    monkeypatch.setattr(torch.ops, "load_library", refuse)
    stamped()
    assert native.native_status().reason == "library.so does not load: library.so: file too short"


def test_without_cuda_the_library_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert native.native_status(torch.device("cpu")).reason == "device is cpu: the kernels are CUDA's"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert native.native_status().reason == "no CUDA device"
    monkeypatch.setattr(torch.version, "cuda", None)
    assert native.native_status().reason == "this PyTorch is built without CUDA"
