"""What a benchmark's figures belong to: the machine they were measured on."""

import os
import platform
from pathlib import Path
from typing import Any

import torch

_ENVIRONMENT = ("OMP_", "MKL_", "KMP_", "GOMP_", "MALLOC_", "LD_PRELOAD", "DNNL_", "ONEDNN_")


def machine() -> dict[str, Any]:
    """What the figures belong to: processor, cores, and the variables that change them."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "bfloat16_instructions": bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()),
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith(_ENVIRONMENT)},
    }
