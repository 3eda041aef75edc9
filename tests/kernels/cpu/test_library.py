"""The library of CPU kernels: built once of what lies there, refused in one line where it is another or missing."""

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from milkweed.kernels.cpu import build as building
from milkweed.kernels.cpu import instruction_sets, library
from milkweed.kernels.cpu.instruction_sets import (
    SETS,
    SOURCES,
    VARIABLE,
    preferred_sets,
    source_hash,
    supported_sets,
)
from milkweed.kernels.cpu.library import LIBRARY, CpuLibraryError, fastest_set, sources_of

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the kernels are for x86-64")


def other(path: Path, sources: str) -> Path:
    """A library that says it was built of other sources."""
    command = ["c++", "-shared", "-fPIC", "-pthread", f'-DSOURCES="{sources}"', str(SOURCES / "library.cpp")]
    subprocess.run([*command, "-o", str(path)], check=True)
    return path


def test_the_library_of_these_sources_is_not_built_again() -> None:
    building.build()
    before = LIBRARY.stat().st_mtime_ns
    assert not building.build()
    assert LIBRARY.stat().st_mtime_ns == before
    assert sources_of(LIBRARY) == source_hash()


def test_every_source_and_option_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(SOURCES, tmp_path / "csrc")
    monkeypatch.setattr(instruction_sets, "SOURCES", tmp_path / "csrc")
    hashes = {source_hash.__wrapped__()}
    assert hashes == {source_hash()}
    for path in sorted((tmp_path / "csrc").iterdir()):
        path.write_text(path.read_text() + "\n")
        hashes.add(source_hash.__wrapped__())
    monkeypatch.setattr(instruction_sets, "OPTIONS", ("-O2",))
    hashes.add(source_hash.__wrapped__())
    assert len(hashes) == 2 + len(list(SOURCES.iterdir()))


def test_a_library_of_other_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CpuLibraryError, match=r"were built of other sources: .*(cpu.build|make cpu-kernels)"):
        fastest_set(other(tmp_path / "old.so", "another"))


def test_a_missing_library_and_one_that_is_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CpuLibraryError, match=r"are not built: .*(cpu.build|make cpu-kernels)"):
        fastest_set(tmp_path / "none.so")
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(CpuLibraryError, match=r"cannot be loaded: .*text\.so"):
        fastest_set(tmp_path / "text.so")
    plain = tmp_path / "plain.cpp"
    plain.write_text("int nothing;")
    subprocess.run(["c++", "-shared", "-fPIC", str(plain), "-o", str(tmp_path / "plain.so")], check=True)
    with pytest.raises(CpuLibraryError, match=r"plain.so is not the library of CPU kernels"):
        fastest_set(tmp_path / "plain.so")


def test_without_a_compiler_the_build_says_which_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CpuLibraryError, match=r"no C\+\+ compiler no-such-compiler: install g\+\+, or name one"):
        building.build(tmp_path / "library.so")
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(CpuLibraryError, match="ended with 1"):
        building.build(tmp_path / "library.so")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CpuLibraryError, match=r"^[^\n]*/file: File exists$"):
        building.build(tmp_path / "file" / "library.so")


def test_another_processor_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(CpuLibraryError, match="the CPU kernels are for x86-64, not for aarch64"):
        building.build(tmp_path / "library.so")


def test_every_processor_has_a_set_and_amx_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruction_sets, "cpu_flags", frozenset)
    assert [each.name for each in supported_sets()] == ["plain"]
    monkeypatch.setattr(
        instruction_sets, "cpu_flags", lambda: frozenset().union(*(flags for flags, _ in SETS.values()))
    )
    assert [each.name for each in supported_sets()] == [each.name for each in SETS]
    monkeypatch.setattr(instruction_sets, "_is_amd", lambda: False)
    assert [each.name for each in preferred_sets()][:2] == ["amx", "avx512_vnni"]
    monkeypatch.setattr(library, "_allowed", lambda library, name: name != "amx")
    assert fastest_set().name == "avx512_vnni"


def test_no_instruction_set_has_code_in_common_with_another(tmp_path: Path) -> None:
    """A template of the C++ library would be kept once, in the code of the first set, which others cannot run."""
    made = tmp_path / "isa.o"
    command = ["c++", "-std=c++17", "-O0", "-fPIC", "-Wno-psabi", "-DISA=plain", "-DENTRY=entry", "-DPEAK=peak"]
    command += ["-DRESIZE=resize", "-c"]
    subprocess.run([*command, str(SOURCES / "isa.cpp"), "-o", str(made)], check=True)
    symbols = subprocess.run(["nm", "-C", str(made)], check=True, capture_output=True, text=True).stdout
    assert " T entry" in symbols
    assert [line for line in symbols.splitlines() if line.split()[-2:-1] in (["W"], ["V"])] == []


def test_building_by_hand_says_what_was_done() -> None:
    command = [sys.executable, "-m", "milkweed.kernels.cpu.build"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == f"{LIBRARY}: is up to date\n"


def test_the_variable_leaves_out_the_sets_that_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "avx2")
    assert [each.name for each in preferred_sets()] == [each.name for each in supported_sets()][-2:]
    monkeypatch.setenv(VARIABLE, "plain")
    assert fastest_set().name == "plain"
    monkeypatch.setenv(VARIABLE, "avx3")
    with pytest.raises(
        CpuLibraryError, match="MILKWEED_MAX_CPU_ISA = 'avx3': there is no such instruction set, there are amx, "
    ):
        fastest_set()
