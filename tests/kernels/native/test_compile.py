"""The kernels compile for GPUs without spilled registers, and write memory 16 bytes at a time; no GPU needed.

Of each operator a few kernels for sm_90a; MILKWEED_COMPILE=full compiles these for all architectures (minutes).
`milkweed.bench.kernel_resources` looks at every kernel of the built library.
"""

import os
import shutil
from pathlib import Path

import pytest

from milkweed.bench.device_code import NoTool, cuobjdump, memory_instructions, resource_usage
from milkweed.bench.launches import Launch, recorded_launches
from milkweed.kernels.native.build import ARCHS
from milkweed.kernels.native.toolchain import BuildError

from . import device_compiler
from .device_compiler import compile_kernels, device_headers

FULL = os.environ.get("MILKWEED_COMPILE") == "full"

HEADERS = {
    "monarch_linear": "monarch_linear.cuh",
    "monarch_mlp": "monarch_mlp.cuh",
    "short_attention": "short_attention.cuh",
    "performer_attention": "performer.cuh",
    "conv_branch": "conv_branch.cuh",
}

# Problems of bench/launches.cpp and the tiles that serve them on an H200.
CHOSEN = {
    "monarch_linear": [("ViT-B fc1", (1, 3))],
    "monarch_mlp": [("width 256 (ViTAE-T, T2T-7)", (2,)), ("width 384 (ViT-S, ViTAE-S, T2T-14)", (2,))],
    "short_attention": [("N 197, head dim 64", (0, 1)), ("N 197, head dim 32", (0,))],
    "performer_attention": [("dim 64 with MLP", (0,)), ("dim 192 with MLP", (1,))],
    "conv_branch": [("14 x 14, groups 4-8-4", (0,)), ("14 x 14, groups 4-12-4", (0,))],
}

# The registers are counted for the compiler that builds the library; NVRTC is of another version and may miss by a few.
SPILLED_BYTES = {"nvcc": 0, "nvrtc": 32}

# Sums over tokens for the second launch, in float32: no tile is 16 bytes wide in a thread's registers.
WRITES_FLOATS = ("mw::performer::performer_summary",)


def chosen_launches(op: str) -> list[Launch]:
    """The launches of `CHOSEN` in bfloat16, or a skip where the launch functions cannot be asked."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ to ask the launch functions with")
    wanted = [(problem, tile) for problem, tiles in CHOSEN[op] for tile in tiles]
    launches = [
        launch
        for launch in recorded_launches()
        if launch.op == op and launch.dtype == "bfloat16" and (launch.problem, launch.tile) in wanted
    ]
    assert {(launch.problem, launch.tile) for launch in launches} == set(wanted)
    return launches


@pytest.mark.parametrize("arch", [arch for arch in ARCHS if not arch.startswith("compute") and (FULL or arch == "90a")])
@pytest.mark.parametrize("op", HEADERS)
def test_kernels_compile_without_spills_and_store_16_bytes(op: str, arch: str, tmp_path: Path) -> None:
    try:
        cuobjdump()
    except NoTool as reason:
        pytest.skip(str(reason))
    launches = chosen_launches(op)
    code, compiler = compile_kernels(HEADERS[op], launches, arch, tmp_path)
    (usage,) = resource_usage(code).values()
    accesses = memory_instructions(code)
    assert set(usage) == set(accesses) == {launch.kernel for launch in launches}
    for kernel, counts in accesses.items():
        assert usage[kernel].spilled_bytes <= SPILLED_BYTES[compiler], kernel
        if not kernel.startswith(WRITES_FLOATS):
            stores = {name for name in counts if name.startswith("STG")}
            assert stores == {"STG.128"}, f"{kernel} stores {dict(counts)}"


def test_nvrtc_compiles_them_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What machines without nvcc use instead."""

    def no_toolchain() -> None:
        raise BuildError("no nvcc")

    monkeypatch.setattr(device_compiler, "find_toolchain", no_toolchain)
    launches = chosen_launches("conv_branch")
    code, compiler = compile_kernels(HEADERS["conv_branch"], launches, "90a", tmp_path)
    assert compiler == "nvrtc"
    assert code.read_bytes().startswith(b"\x7fELF")


def test_launches_fit_the_device() -> None:
    """The tiles that the test above calls an H200's fit its shared memory."""
    for op in CHOSEN:
        for launch in chosen_launches(op):
            assert launch.shared_bytes <= 227 * 1024, launch
            assert launch.threads <= 1024


def test_every_header_is_without_launch_functions() -> None:
    for name, text in device_headers().items():
        assert "const char* launch" not in text.replace("const char* launch(dim3", ""), name
