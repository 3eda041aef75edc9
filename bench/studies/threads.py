"""One image at a time on one thread and on several, in int8, by our CPU kernels and by OpenVINO. Weights are untrained.

    python -m milkweed.bench.studies.threads [--models ARCH ...] [--threads 2] [--pause MS] [--out FILE]

Candidates of a model take turns; figures are milliseconds an image: of one that follows the one before at once, then of
one that comes after a pause, when threads sleep and cores have gone idle, as under light load. The last row of each has
four times as many threads as cores, as no server has: threads then wait for cores too. Behind a plain ViT's rows stands
what 2, 8 and 16 cores would take, modelled from one thread's time and a barrier's.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from math import ceil
from pathlib import Path
from statistics import median
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
PAUSED_ROUNDS = 100
ROWS, QUERIES = 16, 32
"""Rows, and queries of a head, that stay on one thread: the kernels' units (AVX-512)."""


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


def barrier_ms() -> float:
    """Return what a barrier costs the last of two threads to arrive: with five tokens one of them has all the work."""
    size, depth = 32, 24
    model = variant("vit_tiny_patch16_224", img_size=size, embed_dim=64, num_heads=1, depth=depth)
    activations = calibrate(model, size, [noise(size)[:CALIBRATION_IMAGES]])
    with ExitStack() as opened:
        forwards = {}
        for lanes in (1, 2):
            forwards[str(lanes)] = program_forward(model, LanePlan(1, lanes, 1), size, activations)
            opened.callback(forwards[str(lanes)].close)
        ms = {name: times[1] for name, times in time_in_turns(forwards, [1]).items()}
    return max(0.0, ms["2"] - ms["1"]) / (2 * depth)


def modelled(model: Any, ms: float, threads: int, barrier: float) -> float:
    """Return the milliseconds of a plain ViT's image on as many cores as threads.

    A layer is two steps, an attention and the rows between two of them. Each takes as long as the largest share that a
    thread has of it, and then a barrier, which costs as much more as it has members. Memory is taken to keep up, and
    cores to be equally fast.

    Args:
        ms: milliseconds on one thread, which the steps share by their multiply-accumulates.
        barrier: milliseconds of one with two members, as `barrier_ms`.
    """
    tokens, width, heads = model.pos_embed.shape[1], model.embed_dim, model.blocks[0].attn.num_heads
    attention = 2 * tokens / (2 * tokens + 12 * width)
    units = {1 - attention: ceil(tokens / ROWS), attention: heads * ceil(tokens / QUERIES)}
    spent = sum(share * ceil(count / threads) / count for share, count in units.items()) * ms
    return spent + 2 * len(model.blocks) * barrier * threads / 2


def after_pauses(forwards: Mapping[str, Forward], pause: float) -> dict[str, float]:
    """Return the median milliseconds of an image that comes so many milliseconds after the one before, in turns."""
    spent: dict[str, list[float]] = {name: [] for name in forwards}
    images = next(iter(forwards.values())).blank(1)
    for _ in range(PAUSED_ROUNDS):
        for name, forward in forwards.items():
            time.sleep(pause / 1e3)
            started = time.perf_counter()
            forward.run(images)
            spent[name].append(1e3 * (time.perf_counter() - started))
    return {name: median(times) for name, times in spent.items()}


def rows(arch: str, threads: int, pause: float, **arguments: Any) -> Iterator[dict[str, Any]]:
    """Yield milliseconds of one image in every form, and the speedup over the same on one thread."""
    with tempfile.TemporaryDirectory() as work, ExitStack() as opened:
        forwards = {}
        for name, forward in forwards_of(arch, threads, Path(work), **arguments):
            forwards[name] = forward
            opened.callback(forward.close)
        timed = {0.0: {name: times[1] for name, times in time_in_turns(forwards, [1]).items()}}
        timed[pause] = after_pauses(forwards, pause)
    for paused, ms in timed.items():
        for name, spent in ms.items():
            speedup = ms[f"{name.partition(',')[0]}, 1 threads"] / spent
            print(f"{arch:<24} {name:<22} {paused:3g} ms before it {spent:8.2f} ms {speedup:6.2f}x", flush=True)
            yield {"arch": arch, "form": name, "pause_ms": paused, "ms": spent, "times_one_thread": speedup}


def modelled_row(arch: str, ms: float, barrier: float) -> dict[str, Any]:
    """Return what a plain ViT is modelled to take, given its milliseconds on one thread."""
    model = variant(arch)
    row = {str(threads): modelled(model, ms, threads, barrier) for threads in (2, 8, 16)}
    print(f"{arch:<24} modelled on {', '.join(f'{n} cores {spent:.2f} ms' for n, spent in row.items())}", flush=True)
    return {"arch": arch, "modelled_ms": row}


def main() -> None:
    """Run the study."""
    description = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=description)
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="ARCH")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--pause", type=float, default=20, metavar="MS")
    parser.add_argument("--out", type=Path, metavar="FILE")
    options = parser.parse_args()
    before = os.getloadavg()
    barrier, made, models = barrier_ms(), list[dict[str, Any]](), list[dict[str, Any]]()
    print(f"a barrier of two threads: {1e3 * barrier:.2f} us", flush=True)
    for arch in options.models:
        of_model = list(rows(arch, options.threads, options.pause))
        made += of_model
        alone = next(row["ms"] for row in of_model if row["form"] == "milkweed, 1 threads")
        if "vitae" not in arch:
            models.append(modelled_row(arch, alone, barrier))
    if options.out:
        head = about("threads", before, ["openvino"])
        save(options.out, {**head, "barrier_ms": barrier, "rows": made, "modelled": models})


if __name__ == "__main__":
    main()
