"""The key of a measurement: equal where the best plan is, on another machine too, and different elsewhere."""

from pathlib import Path
from typing import Any

import pytest
import torch

from milkweed.kernels.chain_ir import Problem
from milkweed.kernels.impls.all import all_impls
from milkweed.kernels.impls.dense import DenseImpl
from milkweed.kernels.impls.torch_ops import EagerImpl
from milkweed.kernels.native.library import VARIABLE
from milkweed.kernels.native.stamp import LibraryStamp, source_files, stamp_path, write_stamp
from milkweed.kernels.triton.linear import SOURCES
from milkweed.kernels.tuning.cache_key import tuning_key
from milkweed.kernels.tuning.chain import Chain

from .planted import CPU, PROBLEM, Planted, mlp


def test_the_key_is_shapes_and_impls() -> None:
    impls = [DenseImpl(), EagerImpl()]
    key = tuning_key(mlp(), PROBLEM, impls)
    assert key == tuning_key(mlp(scale=2), PROBLEM, impls[::-1])
    other = [
        tuning_key(Chain(mlp().operators[1:]), PROBLEM, impls),
        tuning_key(mlp(), Problem(CPU, torch.float32, 4, 5), impls),
        tuning_key(mlp(), Problem(CPU, torch.bfloat16, 3, 5), impls),
        tuning_key(mlp(), PROBLEM, impls[:1]),
        tuning_key(mlp(), PROBLEM, [*impls, Planted("x")]),
    ]
    assert len({key, *other}) == 1 + len(other)


def test_another_machine_finds_the_key_and_other_sources_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A preset is measured where PyTorch, the compiler and the architectures of the library may be others."""
    library = tmp_path / "kernels.so"
    monkeypatch.setenv(VARIABLE, str(library))

    def key(torch_version: str, csrc: str = "csrc", triton: str = "triton", **stamp: Any) -> str:
        whole = {"archs": ("90a",), "nvcc": "12.8", "torch_headers": torch_version, "build_key": "one"} | stamp
        write_stamp(library, LibraryStamp("sha", csrc, **whole))
        monkeypatch.setattr(torch, "__version__", torch_version)
        monkeypatch.setattr("milkweed.kernels.impls.triton.source_hash", lambda *_: triton)
        monkeypatch.setattr("milkweed.kernels.impls.triton.missing_for_triton", lambda: None if triton else "gone")
        return tuning_key(mlp(), PROBLEM, all_impls())

    here = key("2.11.0")
    assert here == key("2.15.0", archs=("80", "90a", "compute_90"), nvcc="13.2", build_key="other")
    others = [key("2.11.0", csrc="changed"), key("2.11.0", triton="changed"), key("2.11.0", triton="")]
    stamp_path(library).unlink()
    others.append(tuning_key(mlp(), PROBLEM, all_impls()))
    assert len({here, *others}) == 1 + len(others)


def test_the_sources_of_the_triton_kernels_are_those_of_their_folder() -> None:
    found = {path.name for path in source_files(SOURCES, (".py",))}
    assert {"kernels.py", "launch.py", "layout.py", "linear.py", "tiles.py"} <= found
