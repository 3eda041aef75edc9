"""The kernels under sanitizers: no access outside its memory, no undefined sum, no race between threads of an image."""

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
from pathlib import Path
import numpy as np
from milkweed.kernels.cpu.assembly.assemble import assemble
from milkweed.kernels.cpu.instruction_sets import CpuLibraryError, supported_sets
from milkweed.kernels.cpu.library import ProgramRunner, jpeg_entry, resize_entry
from milkweed.kernels.cpu.quantise import calibrated, quantised
from milkweed.kernels.cpu.uint8_images import Uint8Images
from milkweed.kernels.images import jpeg
from milkweed.kernels.images import resize as resizing
from milkweed.kernels.images.resize import CroppedAxis, PicturePart
from simplejpeg import encode_jpeg

library, names, plant = Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3] == "plant"
sys.path.append(sys.argv[4])
from tests.kernels.cpu.test_programs import PROGRAMS, images_of
for isa in (each for each in supported_sets() if each.name in names):
    for make in PROGRAMS.values():
        program = make()
        images = images_of(program, 2)
        for each in (program, quantised(program, calibrated(program, [images]))):
            assembled = assemble(each, isa)
            if plant:  # more than the images hold
                assembled.steps["side"][0] *= 2
            run = ProgramRunner(assembled, library)
            size = images.shape[-1]
            raw = Uint8Images(np.full((2, size, size, 4), 255, np.uint8), np.ones((2, 3), np.float32))
            assert np.isfinite(run(images)).all() and np.isfinite(run(raw)).all()
    entry = resize_entry(isa.name, library)
    resizing.resize_entry = lambda: entry
    for width, height, size in ((61, 43, 24), (5, 9, 31), (300, 2, 7)):
        spans = CroppedAxis(width, 2 * size, size // 2, size), CroppedAxis(height, size, 0, size)
        resizing.resize(np.full((height, width, 3), 255, np.uint8), *spans, bilinear=False)
try:
    entry = jpeg_entry(library)
except CpuLibraryError:
    print("no libjpeg-turbo", file=sys.stderr)
else:
    jpeg.jpeg_entry = lambda: entry
    noise = np.random.default_rng(0).integers(0, 256, (99, 131, 3)).astype(np.uint8)
    for sampling in ("444", "420", "411"):
        body = encode_jpeg(noise, colorsubsampling=sampling)
        for box in ((0, 0, 131, 99), (33, 17, 34, 18), (130, 98, 131, 99), (60, 0, 131, 98)):
            assert jpeg.decode_part(body, PicturePart(131, 99, *box)) is not None
            assert jpeg.decode_part(body[:-200], PicturePart(131, 99, *box)) is None
print("done")
"""

TEAM = """
import sys
from pathlib import Path
import numpy as np
from milkweed.kernels.cpu.assembly.assemble import assemble
from milkweed.kernels.cpu.instruction_sets import supported_sets
from milkweed.kernels.cpu.library import ProgramRunner, start_threads
from milkweed.kernels.cpu.quantise import calibrated, quantised

library, names, plant = Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3] == "plant"
sys.path.append(sys.argv[4])
from tests.kernels.cpu.test_programs import PROGRAMS, images_of
start_threads(3, library)
for isa in (isa for isa in supported_sets() if isa.name in names):
    for make in [PROGRAMS["padded"], PROGRAMS["eight"]] if plant else PROGRAMS.values():
        program = make()
        images = images_of(program, 1)
        for form in (program, quantised(program, calibrated(program, [images]))):
            assembled = assemble(form, isa)
            if plant:  # rows that add behind themselves, shared out
                assembled.steps["whole"] = 0
            run = ProgramRunner(assembled, library, threads=3)
            for _ in range(60 if plant else 10):  # a race is only seen where the threads meet
                assert plant or np.array_equal(run(images, 3), run(images))
                run(images, 3)
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
ROOT = str(Path(__file__).parents[3])


def sanitizers(compiler: str, *names: str) -> str:
    """The libraries of sanitizers that have to be loaded before others."""
    found = []
    for name in names:
        asked = subprocess.run([compiler, f"-print-file-name=lib{name}.so"], capture_output=True, text=True, check=True)
        found.append(asked.stdout.strip())
    if not all(Path(file).is_file() for file in found):
        pytest.skip(f"{compiler} has no sanitizers")
    return " ".join(found)


def a_compiler() -> str:
    compiler = os.environ.get("CXX") or "c++"
    if platform.machine() != "x86_64" or shutil.which(compiler) is None:
        pytest.skip("no C++ compiler for x86-64")
    return compiler


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """The library with sanitizers, the names of the sets in it, and what has to be loaded before."""
    preload = sanitizers(a_compiler(), "asan", "ubsan")
    sets = {each: SETS[each] for each in supported_sets() if each.name in ("avx512_vnni", "avx2", "plain")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "OPTIONS", SANITIZED)
        patch.setattr(building, "SETS", sets)
        library = tmp_path_factory.mktemp("sanitized") / "library.so"
        building.build(library)
    return library, ",".join(each.name for each in sets), preload


def run_under_sanitizers(preload: str, script: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LD_PRELOAD": preload, "ASAN_OPTIONS": "detect_leaks=0", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, env=environment | more, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_no_access_of_programs_that_the_reader_takes_is_outside(sanitized: tuple[Path, str, str]) -> None:
    library, names, preload = sanitized
    more = {"MILKWEED_FUZZ_CPU_LIBRARY": str(library), "MILKWEED_FUZZ_CPU_SETS": names}
    done = run_under_sanitizers(preload, FUZZ, ROOT, str(CASES), **more)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.parametrize("plant", ["", "plant"])
@pytest.mark.slow
def test_no_access_is_outside_its_memory(sanitized: tuple[Path, str, str], plant: str) -> None:
    library, names, preload = sanitized
    done = run_under_sanitizers(preload, PROGRAM, str(library), names, plant, ROOT)
    if plant:
        assert "ERROR: AddressSanitizer: heap-" in done.stderr
    else:
        assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.slow
def test_threads_of_an_image_do_not_race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preload, library = sanitizers(a_compiler(), "tsan"), tmp_path / "library.so"
    sets = {each: SETS[each] for each in supported_sets() if each.name in ("avx512_vnni", "avx2")}
    options = [option.replace("address,undefined", "thread") for option in SANITIZED if not option.startswith("-W")]
    monkeypatch.setattr(building, "OPTIONS", (*options, "-g", "-pthread", "-Wno-psabi"))
    monkeypatch.setattr(building, "SETS", sets)
    building.build(library)
    for plant in ("", "plant"):
        names = ",".join(each.name for each in sets)
        done = run_under_sanitizers(preload, TEAM, str(library), names, plant, ROOT, TSAN_OPTIONS="exitcode=66")
        if plant:
            assert done.returncode == 66
            assert "WARNING: ThreadSanitizer: data race" in done.stderr
        else:
            assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
