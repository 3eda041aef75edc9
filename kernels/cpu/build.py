"""Builds the library of CPU kernels, for all instruction sets in one file: `make kernels`.

g++ 11 or newer, or clang++ 14 or newer (CXX names another than c++); what the machine itself has does not matter.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .instruction_sets import OPTIONS, SETS, SOURCES, source_hash
from .library import LIBRARY, CpuLibraryError, sources_of


def build(library: Path = LIBRARY) -> bool:
    """Build the library unless it is there and current; return whether it was built.

    Raises:
        CpuLibraryError: there is no compiler, or it failed; its own words follow the first line.
    """
    sources = source_hash()
    if library.is_file() and sources_of(library) == sources:
        return False
    if platform.machine() != "x86_64":
        raise CpuLibraryError(f"{platform.machine()}: the kernels are for x86-64")
    compiler = os.environ.get("CXX") or "c++"
    if shutil.which(compiler) is None:
        raise CpuLibraryError(f"no C++ compiler {compiler}: install g++, or name one in CXX")
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder, ThreadPoolExecutor() as pool:
        objects = [Path(folder) / f"{name}.o" for name in ("library", *(isa.name for isa in SETS))]
        commands = [[compiler, *OPTIONS, f'-DSOURCES="{sources}"', "-c", str(SOURCES / "library.cpp")]]
        for isa, (_, flags) in SETS.items():
            entries = {"ENTRY": "run", "PEAK": "peak", "RESIZE": "resize"}
            names = [f"-D{macro}=milkweed_{name}_{isa.name}" for macro, name in entries.items()]
            options = (*OPTIONS, *flags, f"-DISA={isa.name}", *names)
            commands.append([compiler, *options, "-c", str(SOURCES / "isa.cpp")])
        list(pool.map(_run, ([*c, "-o", str(o)] for c, o in zip(commands, objects, strict=True))))
        built = Path(folder) / library.name
        _run([compiler, "-shared", "-s", "-o", str(built), *map(str, objects)])
        built.replace(library)
    return True


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
