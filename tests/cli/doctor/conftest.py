"""Fixtures for the checks of `milkweed doctor`: a machine without a GPU that has every package."""

from typing import Any

import pytest

from milkweed.cli.doctor.packages import EXTRAS
from milkweed.cli.doctor.system_info import SystemInfo
from milkweed.models.serving.fused.device_kernels import KernelTools


@pytest.fixture
def tools() -> dict[str, Any]:
    return {
        "library": "/lib/kernels.so",
        "built": False,
        "archs": (),
        "library_error": "not built: run `make kernels`",
        "triton_error": None,
        "nvcc": None,
        "nvcc_error": "no nvcc: install the CUDA toolkit",
    }


@pytest.fixture
def facts(tools: dict[str, Any]) -> SystemInfo:
    return SystemInfo(
        system="Linux-6",
        python="3.11.7",
        cpu="AMD EPYC",
        cores=2,
        machine_cores=2,
        flags=frozenset({"avx512f", "avx512_bf16"}),
        cpu_capability="AVX512",
        bfloat16=True,
        memory=16 * 10**9,
        memory_limit=None,
        shm_free=8 * 10**9,
        files=1 << 20,
        cuda="13.0",
        cuda_error="Found no NVIDIA driver on your system",
        driver=None,
        gpus=(),
        gpus_on_bus=0,
        kernels=KernelTools(**tools),
        cpu_kernels="amx",
        cpu_kernels_error=None,
        packages={name: "1.0" for extra in EXTRAS for name in extra.packages},
    )
