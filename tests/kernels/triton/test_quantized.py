"""The Triton kernels in 8 bits: interpreted against exact sums, and what they refuse."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from milkweed.kernels.triton.quantized import quantized_refusal

from .scripts import printed

SCRIPT = Path(__file__).parent / "quantized_cases.py"


def results(device: str, *planted: str, **environment: str) -> list[dict[str, Any]]:
    """What quantized_cases.py prints."""
    return [json.loads(line) for line in printed(SCRIPT, device, *planted, **environment).splitlines()]


def judge(found: list[dict[str, Any]]) -> None:
    for row in found:
        if row["name"] == "int8 sums":
            assert row["most"] == 0, row
        elif "residual" not in row["name"]:
            assert row["most"] <= 1.01, row
            limit = 2e-2 if row["name"].startswith("fp8") or row["rows"] <= 17 else 2e-3  # few values: a step counts
            assert row["mean"] <= limit, row
        else:
            assert row["most"] <= 5e-3, row
            assert row["mean"] <= 1e-4, row


BUGS = [
    ("a = x.load([first_row, (block + i) * P + start])", "a = x.load([first_row, 0])"),
    ("tl.dot(a, b, sums[i], out_dtype=SUMS)", "tl.dot(a, b, out_dtype=SUMS)"),
    ("tl.load(scale + at,", "tl.load(scale + tl.arange(0, BN),"),
    ("tl.load(bias + at,", "tl.load(bias + tl.arange(0, BN),"),
    ("if ACT == 0:", "if ACT < 2:"),
    ("value += tl.load(residual + at", "value -= tl.load(residual + at"),
    ("quantized(value, inverse + column, zero + column,", "quantized(value, inverse + column, inverse + column,"),
    ("(value + 12582912.0) - 12582912.0 - 128.0", "value - 128.0"),
    ("value = tl.minimum(tl.maximum(value, 0.0), 255.0)", "value = tl.maximum(value, 0.0)"),
    ("value - (tl.sum(value, 1) / C)[:, None], 0.0)", "value - (tl.sum(value, 1) / C)[:, None], 1.0)"),
    ("+ EPS)", "+ 0.02)"),
    ("row_exists = first_row + row < rows", "row_exists = first_row + row < rows - 1"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), BUGS)
def test_planted_bugs_are_caught(old: str, new: str) -> None:
    found = results("cpu", old, new, TRITON_INTERPRET="1")
    with pytest.raises(AssertionError) as caught:
        judge(found)
    print(f"\n{old!r} -> {new!r}: {str(caught.value).splitlines()[0]}", end="")


@pytest.mark.slow
def test_interpreted_kernels_give_exact_sums() -> None:
    found = results("cpu", TRITON_INTERPRET="1")
    judge(found)
    assert {row["rows"] for row in found} == {1, 17, 197}


@pytest.mark.gpu
def test_kernels_on_a_gpu_give_exact_sums() -> None:
    judge(results("cuda", TRITON_INTERPRET="0"))


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
    monkeypatch.setattr("milkweed.kernels.triton.linear.missing_for_triton", lambda: None)
    assert quantized_refusal(0, rows, dtype, torch.device("cuda")) == reason
    assert quantized_refusal(0, rows, dtype, torch.device("cpu")) is not None


def test_without_triton_it_is_refused_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milkweed.kernels.triton.linear.find_spec", lambda name: None)
    reason = quantized_refusal(0, 197, torch.bfloat16, torch.device("cuda"))
    assert reason == "the package triton is not installed"
