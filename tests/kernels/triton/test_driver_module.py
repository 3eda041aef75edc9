"""Triton without a C compiler: with the module compiled ahead it compiles and launches, on a driver that is none."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from milkweed.kernels.triton import driver_module
from milkweed.kernels.triton.linear import missing_for_triton

from .empty_driver import PROGRAM, build_empty_driver

pytestmark = [
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed"),
]


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("native") / driver_module.DRIVER_MODULE.name
    driver_module.build_driver_module(path)
    return path


@pytest.fixture(scope="module")
def driver(module: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_empty_driver(tmp_path_factory.mktemp("driver"), module)


def launched(module: Path, driver: Path, tmp_path: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Compile and launch a kernel where no program is on PATH."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ours = {"PATH": str(tmp_path), "LD_LIBRARY_PATH": str(driver), "TRITON_LIBCUDA_PATH": str(driver)}
    ours |= {"TRITON_CACHE_DIR": str(tmp_path / "cache"), **more}
    environment = {name: value for name, value in os.environ.items() if name != "CC"} | ours
    return subprocess.run(
        [sys.executable, str(program), str(module)], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_it_launches_without_a_compiler(module: Path, driver: Path, tmp_path: Path) -> None:
    settings = {"TRITON_CACHE_MANAGER": driver_module.CACHE_MANAGER, "TRITON_STORE_BINARY_ONLY": "1"}
    done = launched(module, driver, tmp_path, **settings)
    assert done.stdout == "cuda_utils 2\n", done.stderr
    written = {path.suffix for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    assert written == {".cubin", ".json", ".source"}  # nothing for the CPU, so the folder may be mounted noexec


@pytest.mark.slow
def test_by_itself_triton_needs_one(module: Path, driver: Path, tmp_path: Path) -> None:
    done = launched(module, driver, tmp_path)
    assert "Failed to find C compiler" in done.stderr


def test_where_the_module_is_not_there_triton_is_left_to_compile_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from milkweed.kernels.triton import cache

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cache, "DRIVER_MODULE", tmp_path / "cuda_utils.so")
    manager = cache.DriverModuleCache("key")
    assert manager.get_file("cuda_utils.so") is None
    manager.put(b"compiled", "cuda_utils.so")
    assert manager.get_file("cuda_utils.so") == str(tmp_path / "key" / "cuda_utils.so")
    (tmp_path / "cuda_utils.so").write_bytes(b"ahead")
    assert manager.get_file("cuda_utils.so") == str(tmp_path / "cuda_utils.so")


def test_the_module_does_without_a_compiler_where_the_environment_names_it(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(driver_module, "DRIVER_MODULE", module)
    monkeypatch.delenv("TRITON_CACHE_MANAGER", raising=False)
    assert missing_for_triton() == "no C compiler: triton needs gcc, clang or $CC"
    monkeypatch.setenv("TRITON_CACHE_MANAGER", driver_module.CACHE_MANAGER)
    assert missing_for_triton() is None
    monkeypatch.setattr(driver_module, "DRIVER_MODULE", tmp_path / "none.so")
    assert missing_for_triton() == "no C compiler: triton needs gcc, clang or $CC"
