"""The kernels under AddressSanitizer and UndefinedBehaviorSanitizer: no access outside its memory, no undefined sum."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from milkweed.kernels.cpu import build as building
from milkweed.kernels.cpu.instruction_sets import SETS, supported_sets

SANITIZED = (
    *(
        "-std=c++17",
        "-O1",
        "-fPIC",
        "-fvisibility=hidden",
        "-fsanitize=address,undefined",
        "-Wall",
        "-Wextra",
        "-Werror",
    ),
    *("-Wno-psabi", "-Wno-uninitialized", "-Wno-maybe-uninitialized"),  # of gcc's own headers
)

PROGRAM = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
import numpy as np
from milkweed.kernels.cpu.assemble import assemble
from milkweed.kernels.cpu.instruction_sets import supported_sets
from milkweed.kernels.cpu.library import ProgramRunner, resize_entry
from milkweed.kernels.cpu.quantise import calibrated, quantised
from milkweed.kernels.images import resize as resizing
from milkweed.kernels.images.resize import CroppedAxis

def loaded(cases):
    spec = spec_from_file_location("cases", cases)
    found = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found

library, names, plant = Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3] == "plant"
modules = [loaded(cases) for cases in sys.argv[4:]]
for isa in (each for each in supported_sets() if each.name in names):
    for tests, shape in ((tests, shape) for tests in modules for shape in tests.SHAPES.values()):
        program = tests.made(**shape)
        images = tests.images_of(program, 2)
        for each in (program, quantised(program, calibrated(program, [images]))):
            assembled = assemble(each, isa)
            if plant:  # more than the images hold
                assembled.steps["side"][0] *= 2
            assert np.isfinite(ProgramRunner(assembled, library)(images)).all()
    entry = resize_entry(isa.name, library)
    resizing.resize_entry = lambda: entry
    for width, height, size in ((61, 43, 24), (5, 9, 31), (300, 2, 7)):
        spans = CroppedAxis(width, 2 * size, size // 2, size), CroppedAxis(height, size, 0, size)
        resizing.resize(np.full((height, width, 3), 255, np.uint8), *spans, bilinear=False)
print("done")
"""

FUZZ = """
import random, sys
sys.path.append(sys.argv[1])
from tests.fuzz.programs import TARGETS
for seed in range(int(sys.argv[2])):
    TARGETS["programs"](random.Random(seed))
print("done")
"""

CASES = 60


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """The library with sanitizers, the names of the sets in it, and what has to be loaded before."""
    compiler = os.environ.get("CXX") or "c++"
    if platform.machine() != "x86_64" or shutil.which(compiler) is None:
        pytest.skip("no C++ compiler for x86-64")
    found = []
    for name in ("libasan.so", "libubsan.so"):
        asked = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
        found.append(asked.stdout.strip())
    if not all(Path(each).is_file() for each in found):
        pytest.skip(f"{compiler} has no sanitizers")
    sets = {each: SETS[each] for each in supported_sets() if each.name in ("avx512_vnni", "avx2", "plain")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "OPTIONS", SANITIZED)
        patch.setattr(building, "SETS", sets)
        library = tmp_path_factory.mktemp("sanitized") / "library.so"
        building.build(library)
    return library, ",".join(each.name for each in sets), " ".join(found)


@pytest.mark.slow
def test_no_access_of_programs_that_the_reader_takes_is_outside(sanitized: tuple[Path, str, str]) -> None:
    library, names, preload = sanitized
    environment = {**os.environ, "LD_PRELOAD": preload, "ASAN_OPTIONS": "detect_leaks=0", "OPENBLAS_NUM_THREADS": "1"}
    environment |= {"MILKWEED_FUZZ_CPU_LIBRARY": str(library), "MILKWEED_FUZZ_CPU_SETS": names}
    command = [sys.executable, "-c", FUZZ, str(Path(__file__).parents[3]), str(CASES)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.parametrize("plant", ["", "plant"])
@pytest.mark.slow
def test_no_access_is_outside_its_memory(sanitized: tuple[Path, str, str], plant: str) -> None:
    library, names, preload = sanitized
    cases = [Path(__file__).with_name("test_programs.py"), Path(__file__).with_name("vitae_programs.py")]
    environment = {**os.environ, "LD_PRELOAD": preload, "ASAN_OPTIONS": "detect_leaks=0", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, str(library), names, plant, *map(str, cases)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if plant:
        assert "ERROR: AddressSanitizer: heap-" in done.stderr
    else:
        assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
