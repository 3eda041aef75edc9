"""Runs the Triton kernels in 8 bits against the CPU's plain ones and prints what came out, as JSON: not a test.

    TRITON_INTERPRET=1 python quantized_cases.py cpu    interpreted
    python quantized_cases.py cuda                      on a GPU
    python quantized_cases.py cpu OLD NEW               interpreted with a bug: OLD in the kernels' source is NEW

A process of its own, because triton reads TRITON_INTERPRET when a kernel is defined.
"""

import json
import sys
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))
from quantized_layers import quantized_layer

from milkweed.kernels.quantized import quantize
from milkweed.kernels.triton.linear import SOURCES
from milkweed.kernels.triton.quantized import QuantizedProduct, RowQuantizer

DEVICE, *PLANTED = sys.argv[1:]
DTYPE = torch.float16 if DEVICE == "cpu" else torch.bfloat16


def launched(call: RowQuantizer | QuantizedProduct, x: Tensor, y: Tensor, residual: Tensor | None = None) -> Tensor:
    """What the kernel writes into y; interpreted on a CPU."""
    if isinstance(call, RowQuantizer):
        call.launch(x, y, pdl=False)
    else:
        call.launch(x, residual, y, fast_gelu=False, pdl=False)
    return y


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
    norm = [torch.linspace(0.5, 2, 80), torch.linspace(-1, 1, 80)]
    for name, call in (("rows", RowQuantizer(layer)), ("norm", RowQuantizer(layer, norm, 1e-6))):
        row(f"{kind} {name}", rows, launched(on(call), x.to(DEVICE), empty(x, layer[0].dtype)), call(x))


def products(rows: int, *, int8: bool) -> None:
    kind = "int8" if int8 else "fp8"
    first, second = quantized_layer(80, 176, int8=int8), quantized_layer(176, 80, int8=int8, seed=1, gelu=int8)
    x = torch.randn(rows, 80, generator=torch.Generator().manual_seed(rows))
    x8 = quantize(x, *first.packed()[3:], first.weight.dtype)
    if int8:  # plain sums: a scale of 1 and no bias, below 2^24
        unit = [first.weight, torch.ones(176), torch.zeros(176), *first.packed()[3:]]
        exact = launched(on(QuantizedProduct(unit, 2)), x8.to(DEVICE), torch.empty(rows, 176, device=DEVICE))
        row("int8 sums", rows, exact.cpu(), x8.double() @ first.weight.double().T)
    for tile in (0, 2):
        call = QuantizedProduct(first.packed(), tile, gelu=True, following=second.packed())
        hidden = call(x8, None, DTYPE)
        got = launched(on(call), x8.to(DEVICE), empty(hidden, hidden.dtype))
        row(f"{kind} GELU, requantised, tile {tile}", rows, got, hidden)
        residual = torch.randn(rows, 80).to(DTYPE)
        last = QuantizedProduct(second.packed(), tile)
        got = launched(on(last), hidden.to(DEVICE), empty(residual, DTYPE), residual.to(DEVICE))
        row(f"{kind} residual, tile {tile}", rows, got, last(hidden, residual, DTYPE))


def on(call: RowQuantizer | QuantizedProduct) -> RowQuantizer | QuantizedProduct:
    """The call with its tensors on the device."""

    def there(tensors: list[Tensor] | None) -> list[Tensor] | None:
        return None if tensors is None else [tensor.to(DEVICE) for tensor in tensors]

    if isinstance(call, RowQuantizer):
        return RowQuantizer(there(call.layer), there(call.norm), call.eps)
    return QuantizedProduct(there(call.layer), call.tile, call.gelu, there(call.following))


def empty(like: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty(like.shape, dtype=dtype, device=DEVICE)


def plant(old: str, new: str) -> None:
    """Put a bug into the kernels' module."""
    name = "milkweed.kernels.triton.quantized_kernels"
    text = (SOURCES / "quantized_kernels.py").read_text()
    assert old in text
    path = Path(tempfile.mkdtemp()) / "planted.py"
    path.write_text(text.replace(old, new))
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


if PLANTED:
    plant(*PLANTED)
for rows in (17, 197) if PLANTED else (1, 17, 197, 1577):
    for int8 in (True, False):
        quantizers(rows, int8=int8)
        products(rows, int8=int8)
