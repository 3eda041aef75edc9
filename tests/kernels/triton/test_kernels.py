"""The Triton kernels: interpreted against float64, compiled for GPUs that are not there, and run on one that is."""

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from milkweed.kernels.triton.launch import Launch, mlp_launches
from milkweed.kernels.triton.tiles import VARIANTS, WIDE, DeviceProperties, Variant

from ..emulated.emulation import FULL
from .compiling import mlp_without_memory, source_of
from .machine_code.machine_code import disassembly
from .scripts import printed

SCRIPT = Path(__file__).parent / "triton_cases.py"
MOST_ERROR = {"bfloat16": 4e-3, "float16": 1e-3}

GPUS = {
    80: DeviceProperties((8, 0), 166912),
    90: DeviceProperties((9, 0), 232448, pdl=True),
    100: DeviceProperties((10, 0), 232448, pdl=True),
    120: DeviceProperties((12, 0), 101376, pdl=True),
}
MULTIPLIES_BY = {80: "mma.sync", 90: "wgmma.mma_async", 100: "tcgen05.mma", 120: "mma.sync"}
MODELS = {"ViT-B": (768, 3072, 4), "ViT-S": (384, 1536, 4), "ViTAE-S": (384, 1152, 4), "ViTAE-T": (256, 512, 4)}
TMA = [variant for variant in VARIANTS if variant.tma]


def results(device: str, step: int, **environment: str) -> list[dict[str, Any]]:
    """What triton_cases.py prints."""
    found: list[dict[str, Any]] = json.loads(printed(SCRIPT, device, str(step), **environment))
    return found


def judge(found: list[dict[str, Any]]) -> None:
    wrong = [row for row in found if not (row["error"] <= MOST_ERROR[row["dtype"]] and row["own_row_only"])]
    assert not wrong


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("step", [5, 1])
def test_interpreted_kernels_give_the_product(step: int) -> None:
    found = results("cpu", step, TRITON_INTERPRET="1")
    judge(found)
    assert len(found) >= 20 // step
    assert {row["dtype"] for row in found} == {"float16"}


@pytest.mark.gpu
def test_kernels_on_a_gpu_give_the_product() -> None:
    found = results("cuda", 1, CUBLAS_WORKSPACE_CONFIG=":4096:8", TRITON_INTERPRET="0")
    judge(found)
    assert {row["dtype"] for row in found} == {"bfloat16", "float16"}


def mlp(model: str, gpu: int, variant: Variant) -> list[Launch]:
    """The launches of a model's MLP on 128 images, on tensors without memory."""
    x = torch.empty(197 * 128, MODELS[model][0], dtype=torch.bfloat16, device="meta")
    return list(mlp_launches(x, *mlp_without_memory(*MODELS[model]), x, torch.empty_like(x), variant, GPUS[gpu]))


class Compiled:
    """A launch compiled for an architecture, and what the assembler says of it."""

    def __init__(self, launch: Launch, gpu: int) -> None:
        triton = pytest.importorskip("triton", reason="triton is not installed")
        from triton.backends.compiler import GPUTarget

        made = triton.compile(source_of(launch), target=GPUTarget("cuda", gpu, 32), options=launch.options)
        self.ptx: str = made.asm["ptx"]
        self.shared_bytes: int = made.metadata.shared
        usage = disassembly(Path(triton.__file__).parent / "backends/nvidia/bin", made.asm["cubin"], "-res-usage")
        found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
        assert found
        self.registers, self.stack = int(found[1]), int(found[2])


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """What triton compiles is kept apart from the user's; the same sources are compiled once a machine."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"milkweed-triton-{os.getuid()}"))


def check(launch: Launch, gpu: int, spilled_bytes: int = 0) -> None:
    """The launch fits the GPU, uses its tensor cores, and neither spills nor stores less than 16 bytes."""
    compiled = Compiled(launch, gpu)
    stores = re.findall(r"st\.global\S*", compiled.ptx)
    small = launch.constants["BM"] < 64  # below what wgmma and tcgen05 multiply
    said = f"sm_{gpu} {launch.kernel} {launch.constants}: {compiled.registers} registers, {compiled.shared_bytes} bytes"
    assert compiled.shared_bytes <= GPUS[gpu].shared_bytes, said
    assert ("mma.sync" if small else MULTIPLIES_BY[gpu]) in compiled.ptx, said
    assert compiled.stack <= spilled_bytes, said
    assert stores, said
    assert all(".v4" in store for store in stores), said
    assert ("cp.async.bulk.tensor" in compiled.ptx) == launch.constants["TMA"], said
    waits_first(compiled.ptx, pdl=GPUS[gpu].pdl)


def waits_first(ptx: str, *, pdl: bool) -> None:
    """A program of a programmatic dependent launch waits before it touches memory; what follows is let go after it."""
    memory = re.findall(r"griddepcontrol\.\w+|(?:ld|st|red|atom)\.global|cp\.async\.(?!wait|commit)\S*", ptx)
    controls = ["griddepcontrol.wait", "griddepcontrol.launch_dependents"]
    assert memory[:2] == controls if pdl else not set(controls) & set(memory)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("number", range(4))
@pytest.mark.slow_beyond(4)
def test_mlp_compiles_for_gpus_that_are_not_there(gpu: int, number: int) -> None:
    check(mlp("ViT-B", gpu, WIDE)[number], gpu)


@pytest.mark.parametrize("number", [1, 3])
def test_mlp_compiles_with_descriptors(number: int) -> None:
    check(mlp("ViT-B", 90, TMA[0])[number], 90)


@FULL
def test_every_tile_of_every_model_compiles() -> None:
    for gpu in GPUS:
        for model in MODELS:
            for variant in VARIANTS:
                if not (variant.tma and gpu < 90):
                    for launch in mlp(model, gpu, variant):
                        # ptxas may put a few values that live through the loop on the stack, before it.
                        check(launch, gpu, spilled_bytes=64)
