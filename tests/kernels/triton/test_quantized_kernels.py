"""The Triton kernels in 8 bits: interpreted against exact sums, and what they refuse."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from milkweed.kernels.triton.quantized import quantized_refusal

SCRIPT = Path(__file__).parent / "quantized_cases.py"


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
