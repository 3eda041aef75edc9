"""What the levers of `milkweed compress --images` gain in larger models: time alone, of untrained weights.

    python -m milkweed.bench.studies.levers [ARCH ...] [--out FILE]

Each model is computed by OpenVINO as one lane of a server does, on one thread, in turns with the dense one in float32.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from ...inference.backend import Candidate
from ...inference.device import computes_in_bfloat16
from ...inference.forward import Forward, LanePlan
from ...inference.graph import Graph, graph_forward
from ...jobs.search.timing import time_in_turns
from ...models import create_model
from ...models.architectures.token_blocks import apply_token_plan
from ...models.layers.token_merging import TokenMerging, TokenPlan
from ...models.onnx.file import write_onnx
from ...models.onnx.quantize import MIN_IMAGES, QuantizeSettings, quantized_graph
from ..machine import about

BATCHES = (1, 8)
ONE_LANE = LanePlan(micro_batch=1, lanes=1, threads=1)
DENSE = "dense, float32"
PLANS = {
    "dense": TokenPlan(),
    "merge 28 % every 2 blocks from 4": TokenPlan(TokenMerging(4, 2, 0.28, 0.1), class_last=True),
    "merge 40 % every 2 blocks from 4": TokenPlan(TokenMerging(4, 2, 0.4, 0.1), class_last=True),
}


def graphs(arch: str, work: Path, images: torch.Tensor, **arguments: Any) -> Iterator[tuple[str, Path, torch.dtype]]:
    """Yield what is timed: a name, the file of a graph and the number type that it is computed in."""
    fast = torch.bfloat16 if computes_in_bfloat16(torch.device("cpu")) else torch.float32
    for number, (name, plan) in enumerate(PLANS.items()):
        torch.manual_seed(0)
        model = apply_token_plan(create_model(arch, **arguments).eval().requires_grad_(False), plan)
        write_onnx(model, work / f"{number}.onnx", images[:2])
        if name == "dense":
            yield DENSE, work / f"{number}.onnx", torch.float32
        yield f"{name}, bfloat16", work / f"{number}.onnx", fast
        rounded = quantized_graph(work / f"{number}.onnx", images, QuantizeSettings(images=MIN_IMAGES, symmetric=True))
        (work / f"{number}.int8.onnx").write_bytes(rounded.data)
        yield f"{name}, symmetric int8", work / f"{number}.int8.onnx", fast


def rows(arch: str, size: int, **arguments: Any) -> list[dict[str, Any]]:
    """Milliseconds an image of every model of an architecture, and times as fast as the dense one."""
    images = torch.randn(MIN_IMAGES, 3, size, size, generator=torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as work, ExitStack() as opened:
        forwards: dict[str, Forward] = {}
        for name, file, dtype in graphs(arch, Path(work), images, **arguments):
            graph = Graph(file, file.stat().st_size)
            forwards[name] = graph_forward(graph, Candidate("openvino", dtype), ONE_LANE, size)
            opened.callback(forwards[name].close)
        found = time_in_turns(forwards, BATCHES)
    dense = found[DENSE]
    return [
        {"arch": arch, "model": name, "ms": ms, "times_dense": {batch: dense[batch] / ms[batch] for batch in ms}}
        for name, ms in found.items()
    ]


def measure(archs: Sequence[str]) -> dict[str, Any]:
    """All rows of all architectures, printed as they are measured."""
    before, found = os.getloadavg(), list[dict[str, Any]]()
    for arch in archs:
        for row in rows(arch, 224):
            times = ", ".join(f"{row['ms'][b]:.2f} ms ({row['times_dense'][b]:.2f}x) at {b}" for b in BATCHES)
            print(f"{arch:<24} {row['model']:<50} {times}", flush=True)
            found.append(row)
    return {**about("levers", before), "rows": found}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archs", nargs="*", default=["vit_small_patch16_224", "vit_base_patch16_224"], metavar="ARCH")
    parser.add_argument("--out", type=Path, default=Path("bench/results/levers.json"))
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)  # before what takes minutes
    document = measure(args.archs)
    args.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
