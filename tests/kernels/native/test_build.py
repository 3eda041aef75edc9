"""Building the library: what is compiled again and what not, what stops a build, and that the result loads."""

import os
import shutil
import stat
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from milkweed.kernels.native import build as command
from milkweed.kernels.native import toolchain
from milkweed.kernels.native.build import ARCHS, Build, build, gencode, included
from milkweed.kernels.native.stamp import SOURCES, LibraryStamp, read_stamp, source_files, source_hash, stamp_path
from milkweed.kernels.native.toolchain import BuildError, Toolchain, find_toolchain

TOY = """
#include "tensor_checks.h"

struct Args { const float* x; float* y; int count; };

MW_GLOBAL(128, 1) twice(const Args args) {
  const int i = mw::block_x() * 128 + mw::thread_index();
  if (i < args.count) args.y[i] = 2 * args.x[i];
}

mw::host::Tensor twice_of(const mw::host::Tensor& x, const mw::host::Tensor& y, int64_t count) {
  const mw::host::Call call("twice", "x", x);
  Args args{call.float_data(y, "y", {count}), nullptr, call.size(count, "count")};
  call.check_launch(mw::launch<twice>(dim3(1), 128, 0, call.stream(), args));
  return x;
}

STABLE_TORCH_LIBRARY_IMPL(milkweed_toy, CUDA, m) { m.impl("twice", TORCH_BOX(&twice_of)); }
"""

LOAD = """
import sys, torch
library = torch.library.Library("milkweed_toy", "DEF")
library.define("twice(Tensor x, Tensor y, int count) -> Tensor")
torch.ops.load_library(sys.argv[1])
cuda = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
try:
    torch.ops.milkweed_toy.twice.default.redispatch(cuda, torch.zeros(3), torch.zeros(3), 3)
except RuntimeError as error:
    print(error)
"""

STAMP = LibraryStamp("", "", ("80", "86", "90a", "120a", "compute_90"), "13.0", "2.15.0", "")


@pytest.mark.parametrize(
    ("capability", "arch"),
    [
        ((7, 5), None),
        ((8, 0), "80"),
        ((8, 6), "86"),
        ((8, 9), "86"),
        ((9, 0), "90a"),
        ((10, 0), "compute_90"),
        ((12, 0), "120a"),
        ((12, 1), "compute_90"),
    ],
)
def test_a_device_runs_the_code_of_its_architecture_or_older(capability: tuple[int, int], arch: str | None) -> None:
    assert STAMP.arch_for(capability) == arch


def test_every_architecture_has_its_flag() -> None:
    assert [gencode(arch) for arch in ARCHS[-2:]] == [
        "-gencode=arch=compute_120a,code=sm_120a",
        "-gencode=arch=compute_90,code=compute_90",
    ]
    for wrong in ("sm_90", "9.0", "90b", ""):
        with pytest.raises(BuildError, match="give numbers as in 80, 86"):
            gencode(wrong)


def test_the_library_is_built_from_every_source() -> None:
    names = {path.name for path in source_files()}
    operators = {"monarch_mlp", "short_attention", "performer", "conv_branch", "add_layernorm"}
    assert {f"{name}.cu" for name in operators} | {f"{name}.cuh" for name in operators} <= names
    for source in SOURCES.rglob("*.cu"):
        found = {path.name for path in included(source, SOURCES)}
        assert {source.name, f"{source.stem}.cuh", "primitives.cuh", "tensor_checks.h"} <= found


def test_the_wheel_has_every_source() -> None:
    project = tomllib.loads((SOURCES.parents[1] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["milkweed.kernels"]
    assert set(source_files()) <= {path for pattern in patterns for path in SOURCES.parent.glob(pattern)}


def test_the_source_hash_is_of_paths_and_contents(tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text("1")
    (tmp_path / "notes.md").write_text("not a source")
    before = source_hash(tmp_path)
    (tmp_path / "notes.md").unlink()
    assert source_hash(tmp_path) == before
    (tmp_path / "linear").mkdir()
    (tmp_path / "a.cu").rename(tmp_path / "linear" / "a.cu")
    assert source_hash(tmp_path) != before


@pytest.fixture
def fake_toolchain(tmp_path: Path) -> Toolchain:
    """A compiler that writes its arguments where its output should be."""
    script = tmp_path / "compiler"
    script.write_text('#!/bin/sh\nfor last; do :; done\necho "$@" >> "$0.calls"\necho "$@" > "$last"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return Toolchain(script, "13.0", str(script), tmp_path / "include", "2.10.0")


def test_nothing_is_built_twice(tmp_path: Path, fake_toolchain: Toolchain) -> None:
    sources = tmp_path / "csrc"
    sources.mkdir()
    (sources / "shared.cuh").write_text("// 1\n")
    (sources / "one.cu").write_text('#include "shared.cuh"\n')
    (sources / "two.cu").write_text("// alone\n")
    job = Build(fake_toolchain, ("90a",), tmp_path / "out" / "lib.so", tmp_path / "objects", 2, sources)
    calls = Path(f"{fake_toolchain.nvcc}.calls")

    def compiled() -> list[str]:
        lines = calls.read_text().splitlines() if calls.exists() else []
        calls.unlink(missing_ok=True)
        return sorted(name for line in lines for name in ("one.cu", "two.cu") if f" -c {name} " in line)

    said: list[str] = []
    assert build(job, said.append)
    assert compiled() == ["one.cu", "two.cu"]
    assert read_stamp(job.library).archs == ("90a",)
    assert read_stamp(job.library).source_hash == source_hash(sources)
    assert not build(job, said.append)
    assert compiled() == []
    assert said[-1] == f"{job.library} is up to date"

    (sources / "shared.cuh").write_text("// 2\n")
    assert build(job, said.append)
    assert compiled() == ["one.cu"]
    assert build(replace(job, archs=("80", "90a")), said.append)
    assert compiled() == ["one.cu", "two.cu"]
    job.library.write_text("overwritten")
    assert build(job, said.append)
    assert compiled() == []


def test_a_failed_build_leaves_no_library_that_passes_for_new(tmp_path: Path, fake_toolchain: Toolchain) -> None:
    sources = tmp_path / "csrc"
    sources.mkdir()
    (sources / "one.cu").write_text("// 1\n")
    job = Build(fake_toolchain, ("90a",), tmp_path / "lib.so", tmp_path / "objects", 1, sources)
    build(job, lambda line: None)
    (sources / "one.cu").write_text("// 2\n")
    fake_toolchain.nvcc.write_text("#!/bin/sh\necho 'error: unsupported GNU version!'\nexit 1\n")
    with pytest.raises(BuildError, match="g\\+\\+ is too new for this nvcc"):
        build(job, lambda line: None)
    assert read_stamp(job.library).source_hash != source_hash(sources)


def test_without_nvcc_the_command_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(toolchain, "nvcc_candidates", list)
    assert command.main([]) == 1
    assert capsys.readouterr().err.startswith("kernels: no nvcc: install the CUDA toolkit")


def home_of_nvcc(folder: Path, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a CUDA_HOME whose nvcc says this."""
    nvcc = folder / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text(f"#!/bin/sh\necho '{says}'\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(folder))


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("Cuda compilation tools, release 12.4, V12.4.131", "is version 12.4: 12.8 or newer is needed"),
        ("Cuda compilation tools, release 99.0, V99.0.1", "this PyTorch of CUDA 13.2: the major differs"),
        ("no version", "says nothing usable: no version"),
    ],
)
def test_an_nvcc_that_does_not_fit_is_refused(
    version: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home_of_nvcc(tmp_path, version, monkeypatch)
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    with pytest.raises(BuildError, match=message):
        find_toolchain()


def test_without_a_cxx_compiler_the_build_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home_of_nvcc(tmp_path, "release 13.0", monkeypatch)
    monkeypatch.setenv("NVCC_CCBIN", "no-such-compiler")
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(BuildError, match="no C\\+\\+ compiler no-such-compiler"):
        find_toolchain()


@pytest.mark.slow
def test_what_is_built_loads_and_is_called(tmp_path: Path) -> None:
    """A small library from nvcc to the CUDA implementation, which refuses a CPU's tensors."""
    try:
        tools = find_toolchain()
    except BuildError as reason:
        pytest.skip(str(reason))
    if torch.version.cuda is None:
        pytest.skip("this PyTorch is built without CUDA: it cannot load the library")
    sources = tmp_path / "csrc"
    sources.mkdir()
    for name in ("primitives.cuh", "launch.cuh", "tensor_checks.h"):
        shutil.copy(SOURCES / name, sources)
    (sources / "toy.cu").write_text(TOY)
    job = Build(tools, ("90a",), tmp_path / "libtoy.so", tmp_path / "objects", 1, sources)
    build(job, lambda line: None)
    done = subprocess.run(
        [sys.executable, "-c", LOAD, job.library], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout == "twice: x is not on a CUDA device\n"
    assert stamp_path(job.library).exists()
    # What it says of itself names no folder of the machine that built it.
    for folder in (tools.torch_include, tmp_path):
        assert str(folder).encode() not in job.library.read_bytes()
