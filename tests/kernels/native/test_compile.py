"""The kernels compile for GPUs without spilled registers, write 16 bytes at a time and wait for each other; no GPU.

Of each operator a few kernels for sm_90a; MILKWEED_COMPILE=full compiles these for all architectures (minutes).
"""

import os
from pathlib import Path

import pytest

from milkweed.kernels.native.build import ARCHS
from milkweed.kernels.native.toolchain import BuildError

from . import device_compiler
from .device_code import cuobjdump, memory_instructions, spilled_bytes
from .device_compiler import compile_kernels, device_headers
from .launches import chosen_launches

FULL = os.environ.get("MILKWEED_COMPILE") == "full"

HEADERS = (
    "mlp/monarch_mlp.cuh",
    "attention/short_attention.cuh",
    "performer/performer.cuh",
    "conv/conv_branch.cuh",
    "norm/add_layernorm.cuh",
)

# The registers are counted for the compiler that builds the library; NVRTC is of another version and may miss by a few.
SPILLED_BYTES = {"nvcc": 0, "nvrtc": 32}

# Bytes by architecture and part of the name. At width 192 nvcc 13.0 lacks registers for the performer's second launch.
MAY_SPILL = {("100a", "performer_output"): 16}

OVERLAPPING = ("90a", "100a", "120a")

# Sums over tokens for the second launch, in float32: no tile is 16 bytes wide in a thread's registers.
WRITES_FLOATS = "performer_kv"


@pytest.mark.parametrize("arch", [arch for arch in ARCHS if not arch.startswith("compute") and (FULL or arch == "90a")])
@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.slow
def test_kernels_compile_without_spills_store_16_bytes_and_wait_first(header: str, arch: str, tmp_path: Path) -> None:
    cuobjdump()  # skips before minutes of compiling
    launches = chosen_launches(header)
    code, compiler = compile_kernels(header, launches, arch, tmp_path)
    spilled, instructions = spilled_bytes(code), memory_instructions(code)
    assert spilled.keys() == instructions.keys()
    assert len(spilled) == len({launch.kernel for launch in launches}) > 0
    for kernel, found in instructions.items():
        known = [count for (on, name), count in MAY_SPILL.items() if on == arch and name in kernel]
        assert spilled[kernel] <= max([SPILLED_BYTES[compiler], *known]), kernel
        if WRITES_FLOATS not in kernel:
            stores = {name for name in found if name.startswith("STG")}
            assert stores, kernel
            assert all(".128" in store for store in stores), f"{kernel} stores {stores}"
        # From sm_90 on a kernel may start before the last one has ended: it waits before it touches any memory.
        order = ["ACQBULK", "PREEXIT"] if arch in OVERLAPPING else []
        assert [name for name in found if name in ("ACQBULK", "PREEXIT")] == order, kernel
        assert found[: len(order[:1])] == order[:1], kernel


@pytest.mark.slow
def test_nvrtc_compiles_them_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What machines without nvcc use instead."""

    def no_toolchain() -> None:
        raise BuildError("no nvcc")

    monkeypatch.setattr(device_compiler, "find_toolchain", no_toolchain)
    launches = chosen_launches("conv/conv_branch.cuh")
    code, compiler = compile_kernels("conv/conv_branch.cuh", launches, "90a", tmp_path)
    assert compiler == "nvrtc"
    assert code.read_bytes().startswith(b"\x7fELF")


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.slow
def test_launches_fit_the_device(header: str) -> None:
    """The tiles that launches.cpp calls an H200's fit its shared memory."""
    for launch in chosen_launches(header):
        assert launch.shared_bytes <= 227 * 1024, launch
        assert launch.threads <= 1024


def test_every_header_is_without_launch_functions() -> None:
    for name, text in device_headers().items():
        assert "const char* launch" not in text.replace("const char* launch(dim3", ""), name
