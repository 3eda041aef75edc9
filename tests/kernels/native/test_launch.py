"""How kernels are launched, on a fake CUDA runtime: shared memory, overlap with the kernel before, and errors."""

import ctypes
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ..conftest import Build

KIB = 1024
MOST = 227 * KIB
"""What the fake devices give a block."""

INVALID_VALUE, ILLEGAL_ADDRESS = 1, 700


@pytest.fixture
def cuda(emulated: Build, tmp_path: Path) -> ctypes.CDLL:
    """A runtime on which nothing has been launched: a copy of the library has state of its own."""
    library = ctypes.CDLL(shutil.copy(emulated("launch")._name, tmp_path / "fresh.so"))
    library.mw_launch.restype = ctypes.c_char_p
    return library


def test_a_small_launch_does_not_lower_the_limit_of_a_large_one(cuda: ctypes.CDLL) -> None:
    for shared in (200 * KIB, 60 * KIB, 0, MOST):
        assert cuda.mw_launch(0, 0, shared) is None
        assert cuda.mw_limit(0) == MOST
    assert (cuda.mw_lowered(), cuda.mw_carveout(0)) == (0, 100)


def test_a_kernel_is_set_up_once_for_each_device(cuda: ctypes.CDLL) -> None:
    for _ in range(3):
        for device in (0, 1):
            assert cuda.mw_launch(0, device, 100 * KIB) is None
    assert cuda.mw_limit(0) == cuda.mw_limit(1) == MOST
    assert (cuda.mw_settings(), cuda.mw_launches()) == (2 * 2, 6)  # shared memory and carveout
    assert cuda.mw_launch(1, 0, 100 * KIB) is None
    assert cuda.mw_settings() == 3 * 2


def test_a_device_past_those_remembered_is_set_up_each_time(cuda: ctypes.CDLL) -> None:
    assert cuda.mw_launch(0, 64, MOST) is None
    assert cuda.mw_launch(0, 64, MOST) is None
    assert (cuda.mw_limit(64), cuda.mw_settings()) == (MOST, 2 * 2)


def test_what_the_code_has_of_shared_memory_is_left_to_it(cuda: ctypes.CDLL) -> None:
    cuda.mw_with_static_memory(KIB)
    assert cuda.mw_launch(0, 0, MOST - KIB) is None
    assert cuda.mw_limit(0) == MOST - KIB


def test_threads_with_launches_of_different_sizes_do_not_disturb_each_other(cuda: ctypes.CDLL) -> None:
    def launches(shared: int) -> list[bytes | None]:
        return [cuda.mw_launch(0, device, shared) for device in range(60)]

    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(launches, [50 * KIB, 200 * KIB] * 4))
    assert [text for texts in said for text in texts if text is not None] == []
    assert cuda.mw_lowered() == 0


def test_a_refused_launch_names_its_kernel_and_leaves_no_error_behind(cuda: ctypes.CDLL) -> None:
    said = cuda.mw_launch(0, 0, MOST + 1)
    assert said == b"invalid argument (cudaErrorInvalidValue), launching the_kernel"
    assert cuda.mw_last_error() == 0
    assert cuda.mw_launch(0, 0, MOST) is None


def test_an_earlier_error_is_neither_ours_nor_cleared(cuda: ctypes.CDLL) -> None:
    cuda.mw_leave_error(INVALID_VALUE)
    assert cuda.mw_launch(0, 0, 60 * KIB) is None
    assert cuda.mw_last_error() == INVALID_VALUE


def test_a_lost_context_is_told_by_every_launch_and_is_not_ours(cuda: ctypes.CDLL) -> None:
    assert cuda.mw_launch(0, 0, 60 * KIB) is None
    cuda.mw_lose_context(ILLEGAL_ADDRESS)
    for _ in range(2):
        said = cuda.mw_launch(0, 0, 60 * KIB)
        assert said.startswith(b"earlier work on the device failed, an illegal memory access was encountered")
        assert b":" not in said  # `kernel: reason` is a refusal, which the smoke test of bench.gpu passes over
    assert cuda.mw_last_error() == 0


def test_what_could_not_be_set_up_is_tried_again(cuda: ctypes.CDLL) -> None:
    cuda.mw_lose_context(ILLEGAL_ADDRESS)
    assert b"earlier work" in cuda.mw_launch(0, 0, 60 * KIB)
    cuda.mw_lose_context(0)
    assert cuda.mw_launch(0, 0, 200 * KIB) is None


@pytest.mark.parametrize(
    ("compiled_for", "variable", "overlapped"),
    [(80, None, 0), (89, None, 0), (90, None, 1), (120, "1", 1), (90, "0", 0), (90, "", 1)],
)
def test_a_kernel_overlaps_the_last_one_where_its_code_waits_for_it(
    cuda: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, compiled_for: int, variable: str | None, overlapped: int
) -> None:
    monkeypatch.delenv("MILKWEED_PDL", raising=False)
    if variable is not None:
        monkeypatch.setenv("MILKWEED_PDL", variable)
    cuda.mw_compiled_for(compiled_for)
    for _ in range(2):
        assert cuda.mw_launch(0, 0, 60 * KIB) is None
        assert cuda.mw_overlapped() == overlapped
