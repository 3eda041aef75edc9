"""Rows of one linear layer in 8 bits beside the same layer in two-byte numbers, and beside cuBLASLt's products.

Inputs in 8 bits are there before, as a norm or the layer in front leaves them; what the next layer reads in 8 bits is
rounded here. Every product is checked against its own definition.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from ...kernels.blocked import Activation, activated
from ...kernels.chain_ir import ChainOp, Dense, Gelu, Problem, evaluate
from ...kernels.impls.dense import DenseImpl
from ...kernels.quantized import MOST_FP8, TYPES, QuantizedDense, quantize, sums_of
from ...kernels.triton.quantized import TILES, quantized_product, quantized_refusal
from .journal import Record
from .measure import Candidate, Work, bench_of, measure
from .plan import ATTENTION_SHAPES, DRY, PLAIN, PLAIN_COMPILED, PRODUCTS, Product, Task
from .rows import compile_forward

TOLERANCE = 1e-2
"""Relative error of a result in 8 bits, of which few lie one step beside their definition's."""

FULL_SCALE = 4.0
"""The magnitude that the largest number in 8 bits stands for, of activations about 1."""


@torch.inference_mode()
def quantized(task: Task, unit: str) -> list[Record]:
    """Make all rows of one layer and batch."""
    (_, name, batch, _), bench = unit.split("/"), bench_of(task)
    shape, tokens = PRODUCTS[name], ATTENTION_SHAPES[DRY if bench.dry else "ViT-B"][2]
    problem = Problem(bench.device, bench.dtype, int(batch), tokens)
    x = torch.randn(problem.rows, shape.width, device=bench.device).to(bench.dtype)
    weight = torch.randn(shape.out, shape.width, device=bench.device) / shape.width**0.5
    bias = torch.randn(shape.out, device=bench.device)
    operators: list[ChainOp] = [Dense(weight.to(bench.dtype), bias.to(bench.dtype)), *([Gelu()] if shape.gelu else [])]
    plain = DenseImpl().build(operators, problem)

    def exact(x: Tensor) -> Tensor:
        return evaluate(operators, x.double())

    work = _work(shape, problem, bench.dtype.itemsize)
    candidates = [
        Candidate(PLAIN, False, plain, work),
        Candidate(PLAIN_COMPILED, False, compile_forward(plain, x), work),
    ]
    for dtype in TYPES:
        layer = quantized_layer(weight, dtype)
        following = quantized_layer(torch.ones(16, shape.out, device=bench.device), dtype)
        candidates += _in_8_bits(layer, following if shape.requantized else None, x, shape, problem)
    return measure(("quantized", name, int(batch)), x, exact, candidates, bench, TOLERANCE)


def quantized_layer(weight: Tensor, dtype: torch.dtype) -> QuantizedDense:
    """Round weight (out, in) to int8 or float8_e4m3fn by a scale an output, for inputs about 1, with a random bias."""
    most = 127.0 if dtype == torch.int8 else MOST_FP8
    scale, step = weight.abs().amax(1) / most, FULL_SCALE / most
    w8 = weight / scale[:, None]
    w8 = w8.round().to(dtype) if dtype == torch.int8 else w8.to(dtype)
    ones, bias = torch.ones(weight.shape[1], device=weight.device), torch.randn(len(weight), device=weight.device)
    return QuantizedDense(w8, scale * step, bias, ones * step, ones * 128)


def _in_8_bits(
    layer: QuantizedDense, following: QuantizedDense | None, x: Tensor, shape: Product, problem: Problem
) -> Iterator[Candidate]:
    """Yield our kernel in each tile, and PyTorch's products with their epilogue, eager and compiled."""
    kind, tensors = "int8" if layer.weight.dtype == torch.int8 else "fp8", layer.packed()
    weight, scale, bias, inverse, zero = tensors
    behind = None if following is None else following.packed()
    x8, act = quantize(x, inverse, zero, weight.dtype), Activation.GELU if shape.gelu else Activation.NONE

    def behind_sums(y: Tensor) -> Tensor:
        y = activated(y, act)
        return y if behind is None else quantize(y, behind[3], behind[4], weight.dtype)

    def truth(x: Tensor) -> Tensor:
        return behind_sums(layer.value(x.double())).double()

    def by_cublas(_: Tensor) -> Tensor:
        y = behind_sums(sums_of(x8, weight) * scale + bias)
        return y.to(problem.dtype) if behind is None else y

    def by_kernel(_: Tensor, tile: int) -> Tensor:
        return quantized_product(x8, tensors, act, None, behind, problem.dtype, tile)

    candidate = partial(Candidate, work=_work(shape, problem, 1), truth=truth)
    for tile in range(len(TILES)):
        refusal = None if x.is_cpu else quantized_refusal(tile, problem.rows, problem.dtype, problem.device)
        impl, call = f"triton_quantized:{tile}", refusal or partial(by_kernel, tile=tile)
        yield candidate(f"{kind}, {impl}", True, call, impls=(impl,))
    yield candidate(f"{kind}, cuBLASLt", False, by_cublas)
    yield candidate(f"{kind}, cuBLASLt, torch.compile", False, compile_forward(by_cublas, x))


def _work(shape: Product, problem: Problem, itemsize: int) -> Work:
    """Count a layer's work: input, weights and output move once."""
    out = itemsize if shape.requantized else problem.dtype.itemsize
    moved = itemsize * (problem.rows * shape.width + shape.width * shape.out) + out * problem.rows * shape.out
    return Work(2.0 * problem.rows * shape.width * shape.out, moved)
