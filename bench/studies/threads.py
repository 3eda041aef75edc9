"""One image at a time on one thread and on several, in int8, by our CPU kernels and by OpenVINO. Weights are untrained.

    python -m milkweed.bench.studies.threads [--models ARCH ...] [--threads 2] [--out FILE]

Candidates of a model take turns; figures are milliseconds an image. The last row of a model has four times as many
threads as cores, as no server has: threads then wait for a core, and not only for each other.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ...compress.timing import time_in_turns
from ...inference.backend import Candidate
from ...inference.device import usable_cores
from ...inference.forward import Forward, LanePlan
from ...inference.graph import Graph, graph_forward
from ...inference.program import program_forward
from ...models.onnx.export import write_verified
from ...models.onnx.quantize import MIN_IMAGES, QuantizeSettings, quantized_graph
from ...models.programs.int8 import calibrate
from ..machine import about, save
from .cpu_kernels import CALIBRATION_IMAGES, MODELS, SIZE, fast_dtype, noise, variant

OVERSUBSCRIBED = 4


def forwards_of(
    arch: str, threads: int, work: Path, size: int = SIZE, **arguments: Any
) -> Iterator[tuple[str, Forward]]:
    """Yield a model in every form that is timed, with its name."""
    model, images = variant(arch, **arguments), noise(size)
    write_verified(model, work / "model.onnx", size)
    settings = QuantizeSettings(images=MIN_IMAGES, symmetric=True)
    rounded = work / "int8.onnx"
    rounded.write_bytes(quantized_graph(work / "model.onnx", images, settings).data)
    graph, candidate = Graph(rounded, rounded.stat().st_size), Candidate("openvino", fast_dtype())
    activations = calibrate(model, size, [images[:CALIBRATION_IMAGES]])
    for count in (1, threads):
        yield f"OpenVINO, {count} threads", graph_forward(graph, candidate, LanePlan(1, 1, count), size, fixed=True)
    for count in (1, threads, OVERSUBSCRIBED * usable_cores()):
        yield f"milkweed, {count} threads", program_forward(model, LanePlan(1, count, 1), size, activations)


def rows(arch: str, threads: int, **arguments: Any) -> Iterator[dict[str, Any]]:
    """Yield milliseconds of one image in every form, and the speedup over the same on one thread."""
    with tempfile.TemporaryDirectory() as work, ExitStack() as opened:
        forwards = {}
        for name, forward in forwards_of(arch, threads, Path(work), **arguments):
            forwards[name] = forward
            opened.callback(forward.close)
        ms = {name: times[1] for name, times in time_in_turns(forwards, [1]).items()}
    for name, spent in ms.items():
        alone = ms[f"{name.partition(',')[0]}, 1 threads"]
        print(f"{arch:<24} {name:<22} {spent:8.2f} ms {alone / spent:6.2f}x", flush=True)
        yield {"arch": arch, "form": name, "ms": spent, "times_one_thread": alone / spent}


def main() -> None:
    """Run the study."""
    description = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=description)
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="ARCH")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--out", type=Path, metavar="FILE")
    options = parser.parse_args()
    before = os.getloadavg()
    made = [row for arch in options.models for row in rows(arch, options.threads)]
    if options.out:
        save(options.out, {**about("threads", before, ["openvino"]), "rows": made})


if __name__ == "__main__":
    main()
