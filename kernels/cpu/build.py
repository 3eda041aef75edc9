"""Builds the library of CPU kernels, for all instruction sets in one file: `make cpu-kernels`.

g++ 11 or newer, or clang++ 14 or newer (CXX names another than c++); what the machine itself has does not matter.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .instruction_sets import (
    IMAGES,
    LIBRARY,
    OPTIONS,
    SETS,
    SOURCES,
    CpuLibraryError,
    check_processor,
    source_hash,
    sources_of,
)


def build(library: Path = LIBRARY) -> bool:
    """Build the library unless it is there and current, and say on stdout that it takes a while; return whether it did.

    Raises:
        CpuLibraryError: there is no compiler, it failed (its words follow the first line), or the disk is full.
    """
    check_processor()
    sources = source_hash()
    if library.is_file() and sources_of(library) == sources:
        return False
    compiler = os.environ.get("CXX") or "c++"
    if shutil.which(compiler) is None:
        raise CpuLibraryError(f"no C++ compiler {compiler}: install g++, or name one in CXX")
    print(f"building the CPU kernels with {compiler}: about 20 s on two cores", flush=True)
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            _compile(compiler, sources, Path(folder) / library.name).replace(library)
    except OSError as error:
        raise CpuLibraryError(f"{error.filename or library}: {error.strerror}") from error
    return True


def _compile(compiler: str, sources: str, library: Path) -> Path:
    """Compile the sources, whose hash the library keeps, beside the library, and link it."""
    objects = [library.with_name(f"{name}.o") for name in ("library", *(isa.name for isa in SETS))]
    commands = [[compiler, *OPTIONS, f'-DSOURCES="{sources}"', "-c", str(SOURCES / "library.cpp")]]
    for isa, (_, flags) in SETS.items():
        entries = {"ENTRY": "run", "PEAK": "peak", "RESIZE": "resize"}
        names = [f"-D{macro}=milkweed_{name}_{isa.name}" for macro, name in entries.items()]
        options = (*OPTIONS, *flags, f"-DISA={isa.name}", *names)
        commands.append([compiler, *options, "-c", str(SOURCES / "isa.cpp")])
    with ThreadPoolExecutor() as pool:
        list(pool.map(_run, ([*c, "-o", str(o)] for c, o in zip(commands, objects, strict=True))))
    link = [compiler, "-shared", "-s", "-pthread", "-o", str(library), *map(str, objects)]
    try:
        decoder = str(library.with_name("jpeg.o"))
        _run([compiler, *OPTIONS, "-c", str(IMAGES / "jpeg.cpp"), "-o", decoder])
        _run([*link, decoder, "-l:libjpeg.a", "-Wl,--exclude-libs,ALL"])
    except CpuLibraryError:
        print("no headers and static library of libjpeg-turbo (libjpeg-dev): JPEGs are decoded whole", flush=True)
        _run(link)
    return library


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CpuLibraryError(f"{' '.join(command)}: ended with {done.returncode}\n{done.stderr}")


def main() -> None:
    """Build, and say so."""
    try:
        print(f"{LIBRARY}: {'built' if build() else 'is up to date'}")
    except CpuLibraryError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
