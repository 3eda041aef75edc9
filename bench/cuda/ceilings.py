"""What the device can do at most, measured first: copy bandwidth, matrix rate, and the clocks while it is measured."""

import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

import torch

from .timing import Timer, Timing

_CLOCKS = "clocks.sm,clocks.mem,temperature.gpu,power.draw,clocks_event_reasons.active"


@dataclass(frozen=True)
class Ceilings:
    """Bytes a second that a copy moves (read plus written) and dense operations a second of a matrix product."""

    bytes_per_second: float
    flops_per_second: float
    cache_bytes: int

    def floor_us(self, flops: float, moved_bytes: float) -> float:
        """The least time a kernel with this work can take: the larger of its two terms, microseconds."""
        return 1e6 * max(flops / self.flops_per_second, moved_bytes / self.bytes_per_second)


LARGE, SMALL, TINY = (8192, 1 << 30), (768, 1 << 24), (256, 1 << 20)
"""Side of the matrices and numbers of the copy: for a GPU, for a CPU (done before another process
has its turn), for a dry run."""


def measure_ceilings(
    device: torch.device, dtype: torch.dtype, timer: Timer, *, sizes: tuple[int, int] = LARGE
) -> Ceilings:
    """Measure both on random data (zeros run faster than real numbers)."""
    side, numbers = sizes
    source = torch.randn(min(numbers, 1 << 24), device=device).repeat(max(1, numbers >> 24))
    target = torch.empty_like(source)
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    timings = timer({"copy": [lambda: target.copy_(source)], "product": [lambda: a @ b]})
    copy, product = timings["copy"], timings["product"]
    if not isinstance(copy, Timing) or not isinstance(product, Timing):
        raise RuntimeError(f"the ceilings could not be measured: copy {copy}, product {product}")
    cache = torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else 1 << 20
    return Ceilings(2e6 * source.nbytes / copy.us, 2e6 * side**3 / product.us, cache)


def device_facts(device: torch.device) -> dict[str, Any]:
    """Name, size and versions of what the figures belong to."""
    if device.type != "cuda":
        return {"device": str(device), "dry_run": True}
    properties = torch.cuda.get_device_properties(device)
    return {
        "device": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": properties.L2_cache_size,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "driver": query("driver_version"),
    }


def clocks(device: torch.device) -> str:
    """Clocks (MHz), temperature, power and what holds the clocks back, as nvidia-smi says now."""
    return query(_CLOCKS) if device.type == "cuda" else "no GPU"


def query(fields: str) -> str:
    """One line of nvidia-smi; a text that says so where it does not answer. Reads only: no setting is touched."""
    if not shutil.which("nvidia-smi"):
        return "nvidia-smi is not there"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except subprocess.TimeoutExpired:
        return "nvidia-smi did not answer"
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else done.stderr.strip()
