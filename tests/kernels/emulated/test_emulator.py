"""The emulator that the CUDA kernels are tested under, held to torch's arithmetic and to planted mistakes."""

import ctypes
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from .emulation import DTYPES, MODES, Build


@pytest.fixture(scope="module")
def library(emulated: Build) -> ctypes.CDLL:
    loaded = emulated("primitives")
    for name in ("mw_product", "mw_faulty", "mw_neighbour"):
        getattr(loaded, name).restype = ctypes.c_char_p
    return loaded


def pointer(tensor: Tensor) -> ctypes.c_void_p:
    assert tensor.is_contiguous()
    return ctypes.c_void_p(tensor.data_ptr())


@pytest.mark.parametrize("index", [0, 1])
def test_conversions_are_those_of_torch(library: ctypes.CDLL, index: int) -> None:
    dtype = DTYPES[index]
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype).float()
    between = torch.nextafter(every, torch.tensor(math.inf)), torch.nextafter(every, torch.tensor(-math.inf))
    ties = (every[:-1] + every[1:]) / 2
    x = torch.cat([every, *between, ties, torch.randn(100_000) * 10 ** torch.empty(100_000).uniform_(-9, 6)])
    bits, back = torch.empty(len(x), dtype=torch.int16), torch.empty(len(x))
    library.mw_convert(index, pointer(x), pointer(bits), pointer(back), len(x))
    expected = x.to(dtype)
    numbers = ~expected.isnan()
    assert torch.equal(bits[numbers], expected.view(torch.int16)[numbers])
    assert torch.equal(back[numbers], expected.float()[numbers])
    assert back[~numbers].isnan().all()


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("mode", MODES)
def test_product_is_a_matrix_product(library: ctypes.CDLL, index: int, mode: int) -> None:
    torch.manual_seed(mode)
    a, b, c = torch.randn(16, 16).to(DTYPES[index]), torch.randn(8, 16).to(DTYPES[index]), torch.randn(16, 8)
    expected = c.double() + a.double() @ b.double().T
    assert library.mw_product(mode, index, pointer(a), pointer(b), pointer(c)) is None
    torch.testing.assert_close(c.double(), expected, rtol=0, atol=1e-5)


def test_ldmatrix_trans_is_the_transpose(library: ctypes.CDLL) -> None:
    tile = torch.arange(256, dtype=torch.int16).view(16, 16)
    registers = torch.empty(32, 4, dtype=torch.int32)
    library.mw_transpose(pointer(tile), pointer(registers))
    pairs = registers.view(torch.int16).view(32, 4, 2)
    for lane in range(32):
        for matrix in range(4):
            # Matrix i is rows 8(i % 2).. and columns 8(i / 2)..; lane l takes column l/4, rows 2(l%4) and the next.
            row, column = 8 * (matrix % 2) + 2 * (lane % 4), 8 * (matrix // 2) + lane // 4
            assert pairs[lane, matrix].tolist() == [tile[row, column], tile[row + 1, column]]


def test_functions_are_those_of_torch(library: ctypes.CDLL) -> None:
    x = torch.cat([torch.linspace(-30, 30, 20001), torch.tensor([0.0, -0.0, 1e-30, 1e30, math.inf])])
    gelu_bf16, gelu_fp16, silu, shuffled = (torch.empty_like(x) for _ in range(4))
    library.mw_functions(*(pointer(t) for t in (x, gelu_bf16, gelu_fp16, silu, shuffled)), len(x))
    gelu = torch.nn.functional.gelu(x.double()).float()
    for ours in (gelu_bf16, gelu_fp16):
        torch.testing.assert_close(ours, gelu, rtol=1e-6, atol=3e-5)
    torch.testing.assert_close(silu, torch.nn.functional.silu(x.double()).float(), rtol=1e-5, atol=1e-6)
    assert torch.equal(shuffled[:32], x[:32][torch.arange(32) ^ 5])
    assert torch.equal(shuffled[32:64], x[3].expand(32))


def test_nan_stays_nan(library: ctypes.CDLL) -> None:
    x = torch.full((32,), math.nan)
    results = [torch.zeros(64) for _ in range(4)]
    library.mw_functions(pointer(x), *(pointer(t) for t in results), len(x))
    for result in results[:3]:
        assert result[:32].isnan().all()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (0, "deadlock"),
        (1, "deadlock"),
        (2, "store_16: address is not 16-byte aligned"),
        (3, "shared memory: address is not 16-byte aligned"),
        (4, "shared memory: address out of range"),
        (5, "shared memory: address"),
        (6, "global memory before wait_on_dependent_grids"),
        (7, "launch_dependent_grids before wait_on_dependent_grids"),
        (8, "before wait_on_dependent_grids"),
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
