"""What the sandbox costs: `python -m milkweed.bench.sandbox`, two minutes.

Crops of a picture like a photograph, of 500x375 px and of 12 megapixels, in each format: by a child of the sandbox and
by the same code in this process, in turns. PNG, which is never sandboxed, is the control. CPU time is that of this
thread and of the child. Then what a child takes to start, and what it keeps in memory.
"""

import argparse
import json
import time
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
from PIL import AvifImagePlugin, Image

from ..loaders.headers.info import SANDBOXED, Format, ImageInfo
from ..loaders.preprocess.crop import cut
from ..loaders.preprocess.orientation import pillow_crop
from ..loaders.preprocess.spec import PreprocessSpec
from ..loaders.sandbox.process import Child
from ..loaders.sandbox.sandbox import ANSWER_SECONDS, CPU_SECONDS, MEMORY_BYTES, Sandbox
from .machine import machine
from .turns import in_turns, medians

FORMATS: dict[Format, dict[str, Any]] = {
    "PNG": {},
    "TIFF": {"compression": "tiff_lzw"},
    "BMP": {},
    "GIF": {},
    "PPM": {},
    "AVIF": {"speed": 8},
}
SIZES = ((500, 375), (4000, 3000))
LARGE = (5000, 4000)
SPEC = PreprocessSpec()


def main() -> None:
    """Print rows, write all as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21, help="of one image each way")
    parser.add_argument("--out", type=Path, default=Path("bench/results/sandbox.json"))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # as in a child
    rows = [row(format, size, options.rounds) for size in SIZES for format in FORMATS]
    child = child_costs(options.rounds)
    document = {"benchmark": "sandbox", "machine": machine(), "rounds": options.rounds, "rows": rows, "child": child}
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(f"wrote {options.out}")


def row(format: Format, size: tuple[int, int], rounds: int) -> dict[str, Any]:
    """Medians of one image, ms.

    Raises:
        RuntimeError: the two ways give other bits.
    """
    body, sandbox = encoded(photograph(*size), format), Sandbox()
    info = ImageInfo(format, 0, 0, "", cost=SANDBOXED.get(format, "png"))

    def inside() -> bytes:
        with Image.open(BytesIO(body), formats=(format,)) as image:
            return cut(image, pillow_crop(SPEC, *image.size, 1)).tobytes()

    def apart() -> bytes:
        return sandbox.crop(body, info, SPEC)[0]

    if inside() != apart():
        raise RuntimeError(f"{format}: the sandbox gives other bits")
    clocks = [(~child.pid << 3) | 2 for child in psutil.Process().children()]  # as clock_getcpuclockid(3) makes them

    def cpu_seconds() -> float:
        return time.thread_time() + sum(map(time.clock_gettime, clocks))

    spent = in_turns({"inside": inside, "sandbox": apart}, rounds, warm_up=0, cpu_seconds=cpu_seconds)
    sandbox.close()
    found: dict[str, Any] = {"format": format, "width": size[0], "height": size[1], "body_bytes": len(body)}
    for name, times in spent.items():
        found[f"{name}_wall_ms"], found[f"{name}_cpu_ms"] = medians(times)
    print({name: round(value, 2) if isinstance(value, float) else value for name, value in found.items()}, flush=True)
    return found


def child_costs(rounds: int) -> dict[str, float]:
    """What the start of a child adds to the first image, ms, and its memory after a small and a large image, MB."""
    small, large = (encoded(photograph(*size).convert("L"), "TIFF") for size in (SIZES[0], LARGE))
    info = ImageInfo("TIFF", 0, 0, "", cost="tiff")
    starts = []
    for _ in range(rounds):
        started = time.perf_counter()
        child = Child(MEMORY_BYTES, CPU_SECONDS, ANSWER_SECONDS)
        starts.append(time.perf_counter() - started)
        child.end()
    sandbox = Sandbox()
    sandbox.crop(small, info, SPEC)
    found = {"start_ms": 1000 * median(starts), **memory("small")}
    for body in (large, small):  # by the small one's answer it has let go of the large one
        sandbox.crop(body, info, SPEC)
    found |= memory("large")
    sandbox.close()
    print({name: round(value, 1) for name, value in found.items()})
    return found


def memory(name: str) -> dict[str, float]:
    """Resident and unique memory of the newest child, MB."""
    found = max(psutil.Process().children(), key=psutil.Process.create_time).memory_full_info()
    return {f"{name}_rss_mb": found.rss / 1e6, f"{name}_uss_mb": found.uss / 1e6}


def photograph(width: int, height: int) -> Image.Image:
    """Smooth colours with some noise; the same picture at every size."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float32) * np.float32(500 / width)
    waves = [np.sin(x / (9 + 3 * c)) * 60 + np.cos(y / (7 + 2 * c)) * 60 for c in range(3)]
    levels = np.stack(waves, -1) + 128 + np.random.default_rng(0).normal(0, 4, (height, width, 3))
    return Image.fromarray(levels.clip(0, 255).astype(np.uint8))


def encoded(image: Image.Image, format: Format) -> bytes:
    """The image as a file."""
    body = BytesIO()
    image.save(body, format, **FORMATS[format])
    return body.getvalue()


if __name__ == "__main__":
    main()
