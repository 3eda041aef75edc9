"""The emulator that the CUDA kernels are tested under notices mistakes in how a kernel uses memory and barriers."""

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

MODES = range(4)


@pytest.fixture(scope="module")
def library(emulated: Callable[[str], ctypes.CDLL]) -> ctypes.CDLL:
    loaded = emulated("primitives")
    for name in ("mw_faulty", "mw_neighbour"):
        getattr(loaded, name).restype = ctypes.c_char_p
    return loaded


def pointer(tensor: Tensor) -> ctypes.c_void_p:
    assert tensor.is_contiguous()
    return ctypes.c_void_p(tensor.data_ptr())


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (0, "deadlock"),
        (1, "deadlock"),
        (2, "store_16: address is not 16-byte aligned"),
        (3, "shared memory: address is not 16-byte aligned"),
        (4, "shared memory: address out of range"),
        (5, "shared memory: address"),
    ],
)
def test_mistakes_end_the_launch_with_a_text(library: ctypes.CDLL, kind: int, text: str) -> None:
    buffer = np.zeros(64 + 16, dtype=np.uint8)
    aligned = buffer.ctypes.data + (-buffer.ctypes.data % 16)
    assert text in library.mw_faulty(kind, ctypes.c_void_p(aligned)).decode()


def test_a_missing_wait_or_barrier_shows_in_some_mode(library: ctypes.CDLL) -> None:
    x = torch.randn(64, 4)
    expected = x[(torch.arange(64) + 33) % 64, 0].contiguous()

    def right(mode: int, wait: int, barrier: int) -> bool:
        y = torch.empty(64)
        assert library.mw_neighbour(mode, pointer(x), pointer(y), wait, barrier) is None
        return torch.equal(y, expected)

    assert all(right(mode, 1, 1) for mode in MODES)
    assert not all(right(mode, 0, 1) for mode in MODES)
    assert not all(right(mode, 1, 0) for mode in MODES)
