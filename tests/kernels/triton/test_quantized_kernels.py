"""The Triton kernels in 8 bits: interpreted against exact sums, and compiled for a Hopper that is not there."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from milkweed.kernels.triton.quantized import TILES, QuantizedProduct, RowQuantizer, quantized_refusal

from .test_kernels import _cache, waits_first  # noqa: F401

SCRIPT = Path(__file__).parent / "quantized_cases.py"
SHAPES = {"qkv": (2304, 768), "proj": (768, 768), "fc1": (3072, 768), "fc2": (768, 3072)}
SHARED_BYTES, REGISTERS_AN_SM = 232448, 65536


def results(device: str, **environment: str) -> list[dict[str, Any]]:
    """What quantized_cases.py prints."""
    pytest.importorskip("triton", reason="triton is not installed")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), device], env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def judge(found: list[dict[str, Any]], *, fp8_rounding: bool) -> None:
    for row in found:
        kind, name, eight_bits = row["name"][:4], row["name"], "residual" not in row["name"]
        if name == "int8 sums":
            assert row["most"] == 0, row
        elif eight_bits and (kind == "int8" or fp8_rounding):
            assert row["most"] <= 1.01, row
            assert row["mean"] <= 2e-3, row
        elif not eight_bits:
            assert row["most"] <= 5e-3, row
            assert row["mean"] <= 1e-4, row
    assert {row["rows"] for row in found} == {1, 17, 197, 1577}


def test_interpreted_kernels_give_exact_sums() -> None:
    """Triton's interpreter loses the carry of a mantissa that it rounds to fp8, so that rounding is not judged here."""
    judge(results("cpu", TRITON_INTERPRET="1"), fp8_rounding=False)


@pytest.mark.gpu
def test_kernels_on_a_gpu_give_exact_sums() -> None:
    judge(results("cuda", TRITON_INTERPRET="0"), fp8_rounding=True)


def compiled(kernel: str, signature: dict[str, str], constants: dict[str, Any], options: dict[str, Any]) -> Any:
    """A kernel compiled for Hopper, and the assembler's registers and stack."""
    triton = pytest.importorskip("triton", reason="triton is not installed")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from milkweed.kernels.triton import quantized_kernels

    function = getattr(quantized_kernels, kernel)
    aligned = [i for i, name in enumerate(function.arg_names) if signature.get(name, "").startswith("*")]
    source = ASTSource(
        fn=function,
        signature=signature | dict.fromkeys(constants, "constexpr"),
        constexprs=constants,
        attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
    )
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        said = subprocess.run([str(tool), "-res-usage", "-sass", file.name], capture_output=True, text=True, check=True)
    return made, said.stdout + said.stderr


def product(shape: str, tile: int, *, int8: bool) -> QuantizedProduct:
    """A ViT-B layer: fc1 gives 8 bits behind GELU, the others add or not in bfloat16."""
    outputs, inputs = SHAPES[shape]
    weight = torch.empty(outputs, inputs, dtype=torch.int8 if int8 else torch.float8_e4m3fn, device="meta")
    return QuantizedProduct([weight], tile, shape == "fc1", [weight] if shape == "fc1" else None)


def check_product(shape: str, tile: int, *, int8: bool) -> None:
    call, kind = product(shape, tile, int8=int8), "i8" if int8 else "fp8e4nv"
    constants = call.constants(adds=shape in ("proj", "fc2")) | {"FAST_GELU": True, "PDL": True}
    signature = {
        name: f"tensordesc<{kind}[{constants[rows]},{constants['BK']}]>" for name, rows in (("x", "BM"), ("w", "BN"))
    }
    signature |= dict.fromkeys(("scale", "bias", "inverse", "zero"), "*fp32")
    signature |= {"residual": "*bf16", "y": f"*{kind}" if constants["OUT8"] else "*bf16", "rows": "i32"}
    made, said = compiled("quantized_product", signature, constants, call.options(pdl=True))
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found, said[:500]
    registers, stack = int(found[1]), int(found[2])
    multiplies = len(re.findall("IGMMA" if int8 else "QGMMA", said))
    waits = len(re.findall(r"WARPGROUP\.DEPBAR|GWAIT", said))
    stores = re.findall(r"STG\S*", said)
    print(
        f"{kind} {shape} tile {tile}: {registers} registers, {stack} B stack, {made.metadata.shared} B shared,", end=" "
    )
    print(f"{multiplies} products, {waits} waits, {sorted(set(stores))}")
    assert multiplies
    assert stack == 0
    assert made.metadata.shared <= SHARED_BYTES
    assert registers * 32 * call.options(pdl=True)["num_warps"] <= REGISTERS_AN_SM
    assert stores
    assert all(".128" in store for store in stores)
    waits_first(made.asm["ptx"], pdl=True)


@pytest.mark.parametrize("int8", [True, False])
@pytest.mark.parametrize(("shape", "tile"), [("fc1", 0), ("fc2", 1), ("proj", 2)])
def test_products_compile_for_hopper(shape: str, tile: int, int8: bool) -> None:
    check_product(shape, tile, int8=int8)


@pytest.mark.slow
def test_every_product_compiles_for_hopper() -> None:
    for shape in SHAPES:
        for tile in range(len(TILES)):
            for int8 in (True, False):
                check_product(shape, tile, int8=int8)


def test_the_norm_in_8_bits_compiles_for_hopper() -> None:
    weight = torch.empty(3072, 768, dtype=torch.int8, device="meta")
    call = RowQuantizer([weight], [weight, weight], 1e-6)
    signature = {"x": "*bf16", "y": "*i8", "rows": "i32"}
    signature |= dict.fromkeys(("weight", "bias", "inverse", "zero"), "*fp32")
    made, said = compiled("quantize_rows", signature, call.constants | {"PDL": True}, call.options(pdl=True))
    assert "STACK:0" in said
    waits_first(made.asm["ptx"], pdl=True)


@pytest.mark.parametrize(
    ("capability", "rows", "dtype", "reason"),
    [
        ((9, 0), 197, torch.bfloat16, None),
        ((8, 0), 197, torch.bfloat16, "compute capability 8.0: kernels in 8 bits need 9.0"),
        ((9, 0), 100, torch.bfloat16, "tiles of 128 rows are not for 100 rows"),
        ((9, 0), 197, torch.float32, "dtype torch.float32: bfloat16 or float16 is needed"),
    ],
)
def test_what_cannot_run_is_refused_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], rows: int, dtype: torch.dtype, reason: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr("milkweed.kernels.triton.quantized.missing_for_triton", lambda: None)
    assert quantized_refusal(0, rows, dtype, torch.device("cuda")) == reason
    assert quantized_refusal(0, rows, dtype, torch.device("cpu")) is not None


def test_without_triton_it_is_refused_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milkweed.kernels.triton.linear.find_spec", lambda name: None)
    reason = quantized_refusal(0, 197, torch.bfloat16, torch.device("cuda"))
    assert reason == "the package triton is not installed"
