"""The emulated kernels under AddressSanitizer and UBSan: no access past a buffer, no undefined arithmetic."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from .emulation import FULL

HERE = Path(__file__).parent

# Small problems of each kernel, every path of it: a sanitized build is slow to make and to run.
SELECTION = {
    "emulator": ("test_emulator.py", "product or nan"),
    "monarch_mlp": ("test_monarch_mlp.py", "same_bits"),
    "short_attention": ("test_short_attention.py", "splitting"),
    "performer": ("test_performer.py", "the_small_tile_is_right"),
    "conv_branch": ("test_conv_branch.py", "nan_stays"),
    "add_layernorm": ("test_add_layernorm.py", "stays_in_its_row or refused"),
}

QUICK = ("emulator", "conv_branch", "add_layernorm")
"""These are tested in one process, whose imports take seconds. A sanitized build of the others takes a minute each."""


def runtime(name: str, compiler: str) -> str:
    """The sanitizer's shared library, which must be there before Python's first allocation; or a skip."""
    found = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip(f"{compiler} has no {name}")
    return found


def pytest_under_sanitizers(selection: Sequence[tuple[str, str]], compiler: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of some files whose names match; with the fixtures of kernels/ alone, which need few imports."""
    environment = {
        **os.environ,
        "MILKWEED_EMULATE_SANITIZE": "1",
        "LD_PRELOAD": f"{runtime('libasan.so', compiler)} {runtime('libubsan.so', compiler)}",
        # Python keeps memory until it ends, and fibers have stacks of their own.
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    }
    command = [sys.executable, "-m", "pytest", "-v", "-s", "-p", "no:cacheprovider", f"--confcutdir={HERE.parent}"]
    command += [str(HERE / file) for file, _ in selection]
    command += ["-k", " or ".join(f"({Path(file).stem} and ({names}))" for file, names in selection)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=HERE.parents[2])


@pytest.mark.parametrize(
    "kernels",
    [QUICK, *(pytest.param((name,), marks=FULL) for name in SELECTION if name not in QUICK)],
    ids=lambda kernels: kernels[0] if len(kernels) == 1 else "quick",
)
@pytest.mark.slow
def test_emulated_kernels_are_clean(kernels: Sequence[str], host_compiler: str) -> None:
    done = pytest_under_sanitizers([SELECTION[kernel] for kernel in kernels], host_compiler)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    for kernel in kernels:
        assert SELECTION[kernel][0] in done.stdout, f"nothing of {kernel} was run"


@pytest.mark.slow
def test_a_read_past_shared_memory_is_caught(host_compiler: str) -> None:
    done = pytest_under_sanitizers([("../csrc/past_the_end.py", "past")], host_compiler)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stdout + done.stderr
