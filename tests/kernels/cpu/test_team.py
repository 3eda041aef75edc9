"""Several threads compute an image: the same bits as one, whoever else computes, by idle threads alone."""

import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from milkweed.kernels.cpu import build as building
from milkweed.kernels.cpu.assembly.assemble import assemble
from milkweed.kernels.cpu.instruction_sets import SETS, InstructionSet, supported_sets
from milkweed.kernels.cpu.library import ProgramRunner, start_threads
from milkweed.kernels.cpu.program import Program
from milkweed.kernels.cpu.quantise import calibrated, quantised

from ...support.waiting import HANG_SECONDS
from .parts import images_of
from .test_programs import PROGRAMS

THREADS = 5
"""More than the cores of most machines that run this: barriers hold all the same."""


@pytest.fixture(autouse=True)
def threads() -> None:
    assert start_threads(THREADS) >= THREADS


def programs(names: Iterable[str] = PROGRAMS) -> list[tuple[str, Program]]:
    """In bfloat16 and in int8."""
    made = []
    for name in names:
        program = PROGRAMS[name]()
        made += [(name, program), (name, quantised(program, calibrated(program, [images_of(program, 2)])))]
    return made


@pytest.mark.slow_beyond(1)  # threads meet alike in all sets
@pytest.mark.parametrize("isa", supported_sets(), ids=lambda isa: isa.name)
def test_an_image_has_the_same_bits_by_any_number_of_threads(isa: InstructionSet) -> None:
    for name, program in programs():
        run, images = ProgramRunner(assemble(program, isa), threads=THREADS), images_of(program, 2)
        alone = run(images)
        assert run.helped() == 0
        for count in (2, 3, THREADS):
            helped = False
            while not helped:  # who sleeps helps once it is awake, at whatever step that is
                assert np.array_equal(run(images, count).view(np.int32), alone.view(np.int32)), (name, count)
                helped = run.helped() > 0


def test_only_steps_whose_rows_add_behind_themselves_are_left_to_one_thread() -> None:
    isa = supported_sets()[0]
    whole = {name: assemble(program, isa).steps["whole"].any() for name, program in programs(["four", "runs of three"])}
    assert whole == {"four": False, "runs of three": True}


def test_callers_that_come_and_go_get_the_same_bits() -> None:
    """Ten callers of four programs, each with other numbers of threads at every call."""
    isa, failed = supported_sets()[0], list[str]()
    runs = []
    for name, program in programs(["odd", "ViTAE, odd"]):
        run, images = ProgramRunner(assemble(program, isa), threads=THREADS), images_of(program, 1)
        runs.append((name, run, images, run(images)))

    def call(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(40):
            name, run, images, alone = chance.choice(runs)
            if not np.array_equal(run(images, chance.randint(1, THREADS)), alone):
                failed.append(name)

    callers = [threading.Thread(target=call, args=[seed], daemon=True) for seed in range(10)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(HANG_SECONDS)
        assert not caller.is_alive()
    assert not failed


def test_no_thread_helps_where_all_are_busy() -> None:
    """There may be two threads: while one computes its images, the other computes without help."""
    done = run_alone(
        """
start_threads(2)
run = ProgramRunner(assemble(program, isa), threads=2)
while not run.helped():
    run(images, 2)
many, enough = np.repeat(images, 50, axis=0), threading.Event()
def compute():
    while not enough.is_set():
        run(many, 1)
caller = threading.Thread(target=compute)
caller.start()
while run.helped() > 0:
    run(images, 2)
print("alone")
enough.set()
caller.join()
while not run.helped():
    run(images, 2)
print("together")
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "alone\ntogether\n", "")


def test_no_thread_helps_where_others_decode() -> None:
    done = run_alone(
        """
start_threads(2)
run = ProgramRunner(assemble(program, isa), threads=2)
while not run.helped():  # from here on the other thread is awake for some microseconds
    run(images, 2)
with busy_thread():
    run(images, 2)
    print(run.helped() > 0)
while not run.helped():
    run(images, 2)
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")


def test_a_fork_computes_alone_and_gets_the_same_bits() -> None:
    done = run_alone(
        """
start_threads(3)
run = ProgramRunner(assemble(program, isa), threads=3)
alone = run(images, 3)
if (child := os.fork()) == 0:
    os._exit(0 if np.array_equal(run(images, 3), alone) and run.helped() == 0 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), np.array_equal(run(images, 3), alone))
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 True\n", "")


def test_threads_that_the_system_does_not_allow_are_missing_and_counted() -> None:
    done = run_alone(
        """
run = ProgramRunner(assemble(program, isa), threads=8)
alone = run(images)
pages = int(open("/proc/self/statm").read().split()[0])
most = pages * resource.getpagesize() + (256 << 20)
resource.setrlimit(resource.RLIMIT_AS, (most, most))  # room for the stacks of some threads
there = start_threads(200)
print(1 < there < 200, np.array_equal(run(images, 8), alone))
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True True\n", "")


@pytest.mark.slow
def test_a_thread_that_joins_begins_no_step_before_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be a step ahead of them: a wrong answer, and others that wait for it for ever."""
    if shutil.which(os.environ.get("CXX") or "c++") is None:
        pytest.skip("no C++ compiler")
    plain, library = next(isa for isa in SETS if isa.name == "plain"), tmp_path / "library.so"
    monkeypatch.setattr(building, "OPTIONS", (*building.OPTIONS, "-DMILKWEED_BEFORE_TURN=usleep(1000)"))
    monkeypatch.setattr(building, "SETS", {plain: SETS[plain]})
    building.build(library)
    done = run_alone(
        f"""
library, isa = Path({str(library)!r}), next(isa for isa in supported_sets() if isa.name == "plain")
start_threads(3, library)
run = ProgramRunner(assemble(program, isa), library, threads=3)
alone = run(images)
print(all(np.array_equal(run(images, 3), alone) for _ in range(20)))
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


BEGIN = """
import os, resource, sys, threading
from pathlib import Path
import numpy as np
from milkweed.kernels.cpu.assembly.assemble import assemble
from milkweed.kernels.cpu.instruction_sets import supported_sets
from milkweed.kernels.cpu.library import ProgramRunner, busy_thread, start_threads
sys.path.append(sys.argv[1])
from tests.kernels.cpu.test_programs import PROGRAMS, images_of
program, isa = PROGRAMS["odd"](), supported_sets()[0]
images = images_of(program, 1)
"""


def run_alone(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own, whose threads nobody else has."""
    root = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", BEGIN + script, root]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=HANG_SECONDS)
