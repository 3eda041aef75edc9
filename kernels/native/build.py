"""Builds the library of CUDA kernels; needs nvcc, no GPU: `make kernels`, `python -m milkweed.kernels.native.build`."""

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .stamp import (
    LIBRARY,
    SOURCES,
    LibraryStamp,
    file_sha256,
    hash_of,
    read_stamp,
    source_hash,
    stamp_path,
    write_stamp,
)
from .toolchain import BuildError, Toolchain, find_toolchain, run_compiler

ARCHS = ("80", "86", "89", "90a", "100a", "120a", "compute_90")
"""In turn for A100; A10 and RTX 30; L4, L40 and RTX 40; H100 and H200; B200; RTX 50; PTX for later devices."""

TORCH_TARGET = "0x020a000000000000"
"""PyTorch 2.10, the oldest version that the library can be loaded in."""

COMPILE_FLAGS = (
    "-std=c++20",
    "-O3",
    "-Xcompiler=-fPIC,-fvisibility=hidden",
    "-Werror=all-warnings",
    "--compress-mode=size",
    f"-DTORCH_TARGET_VERSION={TORCH_TARGET}",
    "-DUSE_CUDA",
)
LINK_FLAGS = ("-shared", "-s", "-Wl,-z,now", "-Wl,--no-as-needed", "-ltorch_cpu", "-ltorch_cuda", "-lcudart")

BUILD_FOLDER = Path("build") / "kernels"

_ARCH = re.compile(r"compute_(\d{2,3})|(\d{2,3})(a?)")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Build:
    """One build: its sources, compilers, architectures and output."""

    toolchain: Toolchain
    archs: tuple[str, ...]
    library: Path = LIBRARY
    folder: Path = BUILD_FOLDER
    jobs: int = 1
    sources: Path = SOURCES

    def key(self, sources: Sequence[Path]) -> str:
        """Hash everything that the outcome depends on: contents, flags, architectures and versions."""
        settings = (*COMPILE_FLAGS, *LINK_FLAGS, *self.archs, self.toolchain.version, self.toolchain.torch_version)
        return hash_of([*(part.encode() for part in settings), *(path.read_bytes() for path in sources)])


def gencode(arch: str) -> str:
    """Return the nvcc flag of one architecture: `90a` is machine code, `compute_90` PTX.

    Raises:
        BuildError: it is neither.
    """
    architecture = _ARCH.fullmatch(arch)
    if not architecture:
        raise BuildError(f"architecture {arch!r}: give numbers as in {', '.join(ARCHS)}")
    if architecture[1]:
        return f"-gencode=arch=compute_{architecture[1]},code=compute_{architecture[1]}"
    return f"-gencode=arch=compute_{arch},code=sm_{arch}"


def included(source: Path, root: Path) -> list[Path]:
    """Return a source and every file that it includes, directly or not; includes are paths from `root`."""
    files: list[Path] = []
    waiting = [source]
    while waiting:
        path = waiting.pop()
        if path in files or not path.exists():
            continue
        files.append(path)
        names = re.findall(r'^\s*#include "([^"]+)"', path.read_text(), re.MULTILINE)
        waiting += [root / name for name in names]
    return sorted(files)


def build(job: Build, say: Say = print) -> bool:
    """Build the library unless it is up to date; return whether something was built.

    Raises:
        BuildError: a compiler failed.
    """
    started = time.perf_counter()
    sources = sorted(job.sources.rglob("*.cu"))
    every_hash = source_hash(job.sources)
    key = job.key([path for source in sources for path in included(source, job.sources)])
    if _is_current(job.library, key, every_hash):
        say(f"{job.library} is up to date")
        return False
    job.folder.mkdir(parents=True, exist_ok=True)
    objects = _compile_all(job, sources, say)
    _link(job, objects)
    stamp = LibraryStamp(
        library_sha256=file_sha256(job.library),
        source_hash=every_hash,
        archs=job.archs,
        nvcc=job.toolchain.version,
        torch_headers=job.toolchain.torch_version,
        build_key=key,
    )
    write_stamp(job.library, stamp)
    megabytes, seconds = job.library.stat().st_size / 1e6, time.perf_counter() - started
    say(f"{job.library}: {megabytes:.1f} MB for {', '.join(job.archs)} in {seconds:.0f} s")
    return True


def _is_current(library: Path, key: str, every_hash: str) -> bool:
    try:
        stamp = read_stamp(library)
        return (stamp.build_key, stamp.source_hash, stamp.library_sha256) == (key, every_hash, file_sha256(library))
    except (ValueError, OSError):
        return False


def _compile_all(job: Build, sources: Sequence[Path], say: Say) -> list[Path]:
    """Compile all sources, several at a time; jobs that are left over go to the architectures of each source."""
    at_once = min(job.jobs, len(sources))
    with ThreadPoolExecutor(at_once) as pool:
        # The largest come first, so that none ends long after the others.
        by_size = sorted(
            sources, key=lambda source: -sum(path.stat().st_size for path in included(source, job.sources))
        )
        return list(pool.map(lambda source: _compile(job, source, max(1, job.jobs // at_once), say), by_size))


def _compile(job: Build, source: Path, threads: int, say: Say) -> Path:
    """Compile a source unless its object is there; the object's name has the hash of everything that it depends on."""
    object_file = job.folder / f"{source.stem}-{job.key(included(source, job.sources))[:16]}.o"
    if object_file.exists():
        return object_file
    started = time.perf_counter()
    half_done = object_file.with_suffix(".half.o")
    include = job.toolchain.torch_include
    command = [
        str(job.toolchain.nvcc),
        *COMPILE_FLAGS,
        # Paths of the building machine stay out of the binary.
        f"-Xcompiler=-fmacro-prefix-map={include}/=",
        *(gencode(arch) for arch in job.archs),
        f"--threads={threads}",
        f"-isystem={include}",
        "-I.",
        "-c",
        str(source.relative_to(job.sources)),
        "-o",
        str(half_done.resolve()),
    ]
    run_compiler(command, source.name, cwd=job.sources)
    half_done.rename(object_file)
    say(f"  {source.name} compiled in {time.perf_counter() - started:.0f} s")
    return object_file


def _link(job: Build, objects: Sequence[Path]) -> None:
    """Link against empty libraries with the names of PyTorch's and CUDA's: the loader finds the real ones by name."""
    sonames = {"torch_cpu": "libtorch_cpu.so", "torch_cuda": "libtorch_cuda.so"}
    sonames["cudart"] = f"libcudart.so.{job.toolchain.version.partition('.')[0]}"
    for name, soname in sonames.items():
        stub = ["-shared", "-x", "c", "/dev/null", f"-Wl,-soname,{soname}", "-o", str(job.folder / f"lib{name}.so")]
        run_compiler([job.toolchain.cxx, *stub], f"stub of {soname}")
    job.library.parent.mkdir(parents=True, exist_ok=True)
    stamp_path(job.library).unlink(missing_ok=True)
    half_done = job.library.with_suffix(".half.so")
    command = [job.toolchain.cxx, *map(str, objects), f"-L{job.folder}", *LINK_FLAGS, "-o", str(half_done)]
    run_compiler(command, job.library.name)
    half_done.rename(job.library)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m milkweed.kernels.native.build", description=__doc__)
    parser.add_argument(
        "--arch", nargs="+", default=list(ARCHS), metavar="ARCH", help=f"default: {' '.join(ARCHS)}; `native` too"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time (default: cores)")
    parser.add_argument("--out", type=Path, default=LIBRARY, help=f"the library (default: {LIBRARY})")
    parser.add_argument("--build-folder", type=Path, default=BUILD_FOLDER, help=f"objects (default: {BUILD_FOLDER})")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: at least 1")
    try:
        archs = tuple(dict.fromkeys(_native() if arch == "native" else arch for arch in options.arch))
        for arch in archs:
            gencode(arch)
        build(Build(find_toolchain(), archs, options.out, options.build_folder, options.jobs), _say)
    except BuildError as error:
        print(f"kernels: {error}", file=sys.stderr)
        return 1
    return 0


def _native() -> str:
    """Return the architecture of this machine's first GPU."""
    import torch

    if not torch.cuda.is_available():
        raise BuildError("--arch native: no CUDA device here")
    major, minor = torch.cuda.get_device_capability()
    return f"{major}{minor}a" if major >= 9 else f"{major}{minor}"


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
