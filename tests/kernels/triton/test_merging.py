"""The kernel that merges tokens: interpreted against its definition, compiled for GPUs that are not there, refusals."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from milkweed.kernels.triton.merging import MAX_TOKENS, SPLITS, merge_launch, merge_refusal, merge_tokens
from milkweed.kernels.triton.token_merging import class_importance, matched, merged

from .scripts import printed
from .test_kernels import Compiled, waits_first

SCRIPT = Path(__file__).parent / "merging_cases.py"
MOST_ERROR = {"bfloat16": 8e-3, "float16": 1e-3}
CPU = torch.device("cpu")


def judge(device: str, **environment: str) -> list[dict[str, Any]]:
    """What merging_cases.py prints; all of it must be right."""
    rows: list[dict[str, Any]] = json.loads(printed(SCRIPT, device, **environment))
    assert not [r for r in rows if not (r["error"] <= MOST_ERROR[r["dtype"]] and r["same_merges"] and r["stays"])]
    return rows


@pytest.mark.slow
def test_the_interpreted_kernel_merges_what_torch_merges() -> None:
    assert len(judge("cpu", TRITON_INTERPRET="1")) >= 20


@pytest.mark.gpu
def test_the_kernel_on_a_gpu_merges_what_torch_merges() -> None:
    rows = judge("cuda", CUBLAS_WORKSPACE_CONFIG=":4096:8", TRITON_INTERPRET="0")
    assert {row["dtype"] for row in rows} == {"bfloat16", "float16"}


@pytest.mark.parametrize(
    ("gpu", "tokens", "width", "heads", "tile"),
    [(90, 197, 768, 12, 0), (90, 121, 384, 6, 1), (90, 256, 1024, 16, 2), (80, 197, 768, 12, 0)],
)
@pytest.mark.slow
def test_it_compiles_without_spills(
    gpu: int, tokens: int, width: int, heads: int, tile: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    x, qkv = (torch.empty(2, tokens, n, dtype=torch.bfloat16, device="meta") for n in (width, 3 * width))
    sizes, count = x.new_empty(2, tokens, 1, dtype=torch.float32), round(0.22 * tokens)
    results = x[:, count:], sizes[:, count:]
    how = (heads, count, 1, 0.1, 0.125, SPLITS[tile])
    compiled = Compiled(merge_launch((x, qkv, sizes), results, *how, pdl=gpu >= 90), gpu)
    assert compiled.stack == 0, f"{compiled.registers} registers"
    assert ("wgmma.mma_async" if gpu == 90 else "mma.sync") in compiled.ptx
    narrow = [store for store in re.findall(r"st\.global\S*", compiled.ptx) if ".v4" not in store]
    assert len(narrow) <= 5, narrow  # sizes: a number a thread
    waits_first(compiled.ptx, pdl=gpu >= 90)


def tensors(tokens: int = 17, heads: int = 2, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (2, N, 24), qkv of 8 numbers a head, and sizes."""
    generator = torch.Generator().manual_seed(0)
    x, qkv = (torch.randn(2, tokens, n, generator=generator).to(dtype) for n in (24, 24 * heads))
    return x, qkv, torch.randint(1, 5, (2, tokens, 1), generator=generator).float()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_operator_on_a_cpu_is_the_definition(dtype: torch.dtype) -> None:
    x, qkv, size = tensors(dtype=dtype)
    q, k, _ = qkv.unflatten(2, (3, 2, 8)).permute(2, 0, 3, 1, 4)
    for sized, protect in ((size, 0.3), (None, 0.0)):
        importance = class_importance(q * 0.4, k, sized, protect, 1) if protect else None
        y, sizes = merge_tokens(x, qkv, sized, 2, 5, 1, protect, 0.4)
        want, wanted_sizes = merged(x, sized, *matched(k.mean(dim=1)[:, 1:], importance), 5, 1)
        assert torch.equal(y, want)
        assert torch.equal(sizes, wanted_sizes)
        call = (x, qkv, sized, 2, 5, 1, protect, 0.4, 0)
        torch.library.opcheck(torch.ops.milkweed.triton_merge_tokens.default, call)


@pytest.mark.parametrize("value", [0.0, float("inf"), float("nan"), -1.0])
def test_sizes_that_are_no_numbers_of_patches_are_refused_on_a_cpu(value: float) -> None:
    x, qkv, size = tensors()
    size[1, 3] = value
    with pytest.raises(ValueError, match="size: numbers above 0 and finite are needed"):
        merge_tokens(x, qkv, size, 2, 5, 1)


def test_what_does_not_fit_is_refused_in_one_line() -> None:
    x, qkv, size = tensors()
    for arguments, said in (
        ((x[:1], qkv, None, 2, 5, 1), "they do not fit"),
        ((x.half(), qkv, None, 2, 5, 1), "x is torch.float16, qkv torch.bfloat16: bfloat16 or float16 is needed"),
        ((x.float(), qkv.float(), None, 2, 5, 1), "x is torch.float32"),
        ((x, qkv, None, 5, 5, 1), r"qkv \(2, 17, 48\): \(B, N, 3 \* 5 heads \* head dim\) is needed"),
        ((x, qkv, None, 2, 8, 1), "8 of 16 tokens cannot merge: 1 to 7 can"),
        ((x, qkv, None, 2, 0, 1), "0 of 16 tokens cannot merge"),
        ((x, qkv, None, 2, 1, 16), "1 of 1 tokens cannot merge: 1 to 0 can"),
        ((x, qkv, None, 2, 5, 1, 0.0, 1.0, 3), "tile 3: there are 3"),
        ((x, qkv, size[:, 1:], 2, 5, 1), r"size \(2, 16, 1\) of torch.float32: \(2, 17, 1\) of float32"),
        ((x, qkv, size.double(), 2, 5, 1), "of torch.float64"),
        ((x.mT.contiguous().mT, qkv, None, 2, 5, 1), "contiguous are needed"),
    ):
        with pytest.raises(ValueError, match=said) as caught:
            merge_tokens(*arguments)
        assert "\n" not in str(caught.value)
    large, large_qkv, _ = tensors(MAX_TOKENS + 1)
    with pytest.raises(ValueError, match="257 tokens, 1 of them in front: the merging kernel takes at most 256"):
        merge_tokens(large, large_qkv, None, 2, 5, 1)


def test_refusals_of_a_device_come_before_a_launch() -> None:
    assert merge_refusal(17, 1, 5, torch.bfloat16, CPU) == "device is cpu: these Triton kernels are CUDA's"
    assert merge_refusal(17, 1, 5, torch.bfloat16, CPU, on_cpu=True) is None
    assert merge_refusal(17, 1, 5, torch.float32, CPU, on_cpu=True) is not None
    assert merge_refusal(17, 1, 5, torch.float32, torch.device("cuda")) == (
        "dtype torch.float32: bfloat16 or float16 is needed"
    )
    assert "at most 252" in str(merge_refusal(256, 5, 5, torch.bfloat16, CPU))
    assert "at most 256" in str(merge_refusal(577, 1, 5, torch.bfloat16, torch.device("cuda")))
