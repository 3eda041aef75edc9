"""The kernel of residual and layer norm, its own source on a CPU, against float64 on the same rounded inputs."""

import ctypes
import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from milkweed.kernels.add_layernorm import MAX_WIDTH, add_layernorm_reference, add_layernorm_refusal

from .emulation import DTYPES, MODES, TOLERANCE, Build, guarded, guards_untouched, launch, relative_error

WIDTHS = (320, 8, 192, 256, 264, 384, 512, 768, 1024)
EPS = 1e-6


class Kernel:
    """The emulated library behind tensors."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def launch(
        self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, *, mode: int = 0, eps: float = EPS
    ) -> tuple[str | None, Tensor, Tensor]:
        rows, width = x.shape
        sums, norms = guarded((rows, width), x.dtype), guarded((rows, width), x.dtype)
        dtype = DTYPES.index(x.dtype)
        given = (x, residual, weight, bias, sums, norms, rows, width, eps)
        error = launch(self.library.mw_add_layernorm, mode, mode + 1, dtype, *given)
        assert guards_untouched(sums)
        assert guards_untouched(norms)
        return error, sums, norms

    def __call__(self, *tensors: Tensor, mode: int = 0) -> tuple[Tensor, Tensor]:
        error, sums, norms = self.launch(*tensors, mode=mode)
        assert error is None, error
        return sums, norms


@pytest.fixture(scope="module")
def kernel(emulated: Build) -> Kernel:
    return Kernel(emulated("add_layernorm"))


def inputs(rows: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random rows between guards of NaN, and a norm's weight and bias."""
    generator = torch.Generator().manual_seed(rows + width)
    x, residual = guarded((rows, width), dtype), guarded((rows, width), dtype)
    for tensor in (x, residual):
        tensor.copy_(torch.randn(rows, width, generator=generator))
    weight, bias = torch.rand(width, generator=generator) + 0.5, torch.randn(width, generator=generator)
    return x, residual, weight, bias


def truth(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    sums = x.double() + residual.double()
    return sums, F.layer_norm(sums, weight.shape, weight.double(), bias.double(), EPS)


@pytest.mark.parametrize("dtype", DTYPES, ids=["bf16", "fp16"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.slow_beyond(2)
def test_sums_and_norms_are_those_of_float64(kernel: Kernel, width: int, dtype: torch.dtype) -> None:
    for rows in (1, 4, 17):
        given = inputs(rows, width, dtype)
        wanted = truth(*given)
        results = [kernel(*given, mode=mode) for mode in MODES]
        for got, want in zip(results[0], wanted, strict=True):
            assert relative_error(got, want) <= TOLERANCE[dtype]
        assert torch.equal(results[0][0], wanted[0].to(dtype))  # rounded once
        assert all(torch.equal(a, b) for other in results for a, b in zip(other, results[0], strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=["bf16", "fp16"])
def test_a_large_mean_costs_no_digits(kernel: Kernel, dtype: torch.dtype) -> None:
    """The sums are 1000 and a little; squares of them, or their rounding, would lose the little."""
    x, residual, weight, bias = inputs(5, 384, dtype)
    x.fill_(1000.0)
    _, norms = kernel(x, residual, weight, bias)
    assert relative_error(norms, truth(x, residual, weight, bias)[1]) <= TOLERANCE[dtype]


def test_a_constant_row_gives_the_bias(kernel: Kernel) -> None:
    x, residual, weight, bias = inputs(3, 320, torch.bfloat16)
    x[1], residual[1] = 3.0, -1.5
    sums, norms = kernel(x, residual, weight, bias)
    assert torch.equal(sums[1], torch.full((320,), 1.5, dtype=torch.bfloat16))
    assert torch.equal(norms[1], bias.bfloat16())


@pytest.mark.parametrize("hostile", [math.nan, math.inf])
def test_what_is_not_finite_stays_in_its_row(kernel: Kernel, hostile: float) -> None:
    x, residual, weight, bias = inputs(9, 264, torch.bfloat16)
    clean = kernel(x, residual, weight, bias)
    x[4, 263], residual[6, 0] = hostile, hostile
    hit = torch.isin(torch.arange(9), torch.tensor([4, 6]))
    for mode in MODES:
        sums, norms = kernel(x, residual, weight, bias, mode=mode)
        assert torch.equal(sums[~hit], clean[0][~hit])
        assert torch.equal(norms[~hit], clean[1][~hit])
        assert norms[hit].isnan().all()
        assert torch.equal(sums[:, 8], clean[0][:, 8])


def test_is_the_cpu_implementation(kernel: Kernel) -> None:
    """Both round once, so they differ where the order of a sum decides a rounding."""
    for dtype in DTYPES:
        given = inputs(8, 768, dtype)
        expected = add_layernorm_reference(*given, EPS)
        sums, norms = kernel(*given)
        assert torch.equal(sums, expected[0])
        assert relative_error(norms, expected[1].double()) <= 1e-3


def test_what_does_not_fit_is_refused_and_writes_nothing(kernel: Kernel) -> None:
    def said(width: int, **options: float) -> str:
        error, sums, norms = kernel.launch(*inputs(2, width, torch.bfloat16), **options)  # type: ignore[arg-type]
        assert (error is None) == (not sums.isnan().any())
        assert sums.isnan().any() == norms.isnan().any()
        return str(error)

    for width in (8, MAX_WIDTH):
        assert said(width) == "None"
        assert add_layernorm_refusal(width, torch.bfloat16) is None
    for width in (4, 196, MAX_WIDTH + 8):
        assert "multiple of 8, at most 1024" in said(width)
        assert add_layernorm_refusal(width, torch.float16) == f"width {width}: a multiple of 8 up to 1024 is needed"
    assert "eps is negative" in said(8, eps=-1.0)
    assert add_layernorm_refusal(8, torch.float32) == "dtype torch.float32: bfloat16 or float16 is needed"
    x, residual, weight, bias = inputs(3, 64, torch.bfloat16)
    assert "aligned" in str(kernel.launch(x.flatten()[1:65].view(1, 64), residual[:1], weight, bias)[0])
    assert kernel(x[:0], residual[:0], weight, bias)[0].shape == (0, 64)
