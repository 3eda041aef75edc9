"""Runs the Triton kernels in 8 bits against the CPU's plain ones and prints what came out, as JSON: not a test.

    TRITON_INTERPRET=1 python quantized_cases.py cpu    interpreted
    python quantized_cases.py cuda                      on a GPU
    python quantized_cases.py cpu OLD NEW               interpreted with a bug: OLD in the kernels' source is NEW

A process of its own, because triton reads TRITON_INTERPRET when a kernel is defined.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from compiling import planted  # type: ignore[import-not-found]
from quantized_layers import quantized_layer

from milkweed.kernels.blocked import Activation
from milkweed.kernels.quantized import quantize
from milkweed.kernels.triton.launch import Launch
from milkweed.kernels.triton.linear import SOURCES
from milkweed.kernels.triton.quantized import product_launch, quantize_rows, quantized_product, rows_launch

DEVICE, *PLANTED = sys.argv[1:]
DTYPE = torch.float16 if DEVICE == "cpu" else torch.bfloat16
Y = object()
"""Stands for the tensor that a launch writes."""


def launched(make: Callable[..., Launch], *arguments: Any, like: Tensor) -> Tensor:
    """What the kernel writes of arguments on the CPU; interpreted there."""

    def there(value: Any) -> Any:
        if isinstance(value, list):
            return [there(item) for item in value]
        return value.to(DEVICE) if isinstance(value, Tensor) else value

    y = torch.empty(like.shape, dtype=like.dtype, device=DEVICE)
    make(*(y if value is Y else there(value) for value in arguments), pdl=False).run()
    return y.cpu()


def row(name: str, rows: int, got: Tensor, want: Tensor) -> None:
    """Print how many values differ: 8 bits by steps, others relative to the root mean square."""
    steps = (got.double() - want.double()).abs()
    if got.dtype == torch.float8_e4m3fn:
        size = want.double().abs()
        steps = steps / size.clamp_min(2**-6) * 8  # a step is an eighth at most
        if DEVICE == "cpu":  # the interpreter halves what it rounds up to a power of two: leave out those and the next
            mantissa = size.frexp().mantissa
            steps = steps[(mantissa > 0.5) & (mantissa < 0.9375) & (size > 2**-6)]
    if got.element_size() > 1:
        steps = steps / want.double().square().mean().sqrt()
    print(json.dumps({"name": name, "rows": rows, "most": float(steps.max()), "mean": float(steps.mean())}))


def quantizers(rows: int, *, int8: bool) -> None:
    kind = "int8" if int8 else "fp8"
    layer = quantized_layer(80, 48, int8=int8).packed()
    x = torch.randn(rows, 80, generator=torch.Generator().manual_seed(rows)).to(DTYPE) * 2
    for name, norm in (("rows", []), ("norm", [torch.linspace(0.5, 2, 80), torch.linspace(-1, 1, 80)])):
        want = quantize_rows(x, layer, norm, 1e-6)
        row(f"{kind} {name}", rows, launched(rows_launch, x, layer, norm, 1e-6, Y, like=want), want)


def products(rows: int, *, int8: bool) -> None:
    kind = "int8" if int8 else "fp8"
    first = quantized_layer(80, 176, int8=int8).packed()
    second = quantized_layer(176, 80, int8=int8, seed=1, gelu=int8).packed()
    x = torch.randn(rows, 80, generator=torch.Generator().manual_seed(rows))
    x8, residual = quantize(x, *first[3:], first[0].dtype), torch.randn(rows, 80).to(DTYPE)

    def judge(name: str, x8: Tensor, *how: Any) -> Tensor:
        want = quantized_product(x8, *how)
        *operands, dtype, tile = how
        row(f"{kind} {name}", rows, launched(product_launch, x8, *operands, Y, dtype, tile, like=want), want)
        return want

    if int8:  # plain sums: a scale of 1 and no bias, below 2^24
        unit = [first[0], torch.ones(176), torch.zeros(176), *first[3:]]
        judge("sums", x8, unit, Activation.NONE, None, None, torch.float32, 2)
    for tile in (0, 2):
        hidden = judge(f"GELU, requantised, tile {tile}", x8, first, Activation.GELU, None, second, DTYPE, tile)
        judge(f"residual, tile {tile}", hidden, second, Activation.NONE, residual, None, DTYPE, tile)


if PLANTED:
    old, new = PLANTED
    text = (SOURCES / "kernels.py").read_text()
    assert old in text
    planted(text.replace(old, new), "milkweed.kernels.triton.kernels")
for rows in (17, 197) if PLANTED else (1, 17, 197) if DEVICE == "cpu" else (1, 17, 197, 1577):
    for int8 in (True, False):
        quantizers(rows, int8=int8)
        products(rows, int8=int8)
