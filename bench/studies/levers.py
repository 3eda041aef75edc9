"""What a CPU's levers gain in larger models: fewer tokens, fewer bits, Monarch layers, OpenVINO and our own kernels.

    python -m milkweed.bench.studies.levers [ARCH ...] [--out FILE]

Each model is computed as one lane of a server does, on one thread, in turns with the dense one by OpenVINO in float32.
Weights are untrained: this is time alone.
"""

import argparse
import copy
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...inference.backend import Candidate
from ...inference.device import CPU, computes_in_bfloat16
from ...inference.forward import Forward, LanePlan
from ...inference.graph import Graph, graph_forward
from ...inference.program import program_forward
from ...jobs.search.timing import time_in_turns
from ...models import create_model, layer_specs_for
from ...models.accounting import macs
from ...models.architectures.token_blocks import apply_token_plan
from ...models.layers.layer_spec import replace_linears
from ...models.layers.select import select_linears
from ...models.layers.token_plan import ALL_TOKENS, TokenMerging, TokenPlan
from ...models.onnx.export import write_verified
from ...models.onnx.quantize import MIN_IMAGES, QuantizeSettings, quantized_graph
from ...models.programs.int8 import calibrate
from ...models.programs.session import kernels_refusal
from ..machine import about

BATCHES = (1, 8)
ONE_LANE = LanePlan(micro_batch=1, lanes=1, threads=1)
DENSE = "dense, OpenVINO float32"
CALIBRATING = 4
"""Images that calibrate our kernels' int8: what becomes of noise does not matter."""


@dataclass(frozen=True)
class Variant:
    """What is done to a model: fewer tokens, or Monarch layers of 4 blocks in place of some linear layers."""

    tokens: TokenPlan = ALL_TOKENS
    monarch: tuple[str, ...] = ()

    def made(self, arch: str, **arguments: Any) -> nn.Module:
        """Return the model of an architecture."""
        torch.manual_seed(0)
        model = create_model(arch, **arguments)
        if self.monarch:
            replace_linears(model, layer_specs_for(model, select_linears(model, self.monarch), "monarch", nblocks=4))
        return apply_token_plan(model.eval().requires_grad_(False), self.tokens)


VARIANTS = {
    "dense": Variant(),
    "Monarch MLPs": Variant(monarch=("mlp",)),
    "all Monarch": Variant(monarch=("mlp", "qkv", "proj")),
    "28 % merged": Variant(TokenPlan(TokenMerging(4, 2, 0.28, 0.1), class_last=True)),
    "40 % merged": Variant(TokenPlan(TokenMerging(4, 2, 0.4, 0.1), class_last=True)),
}


def forwards(
    name: str, model: nn.Module, work: Path, images: Tensor, *, trained: bool = False
) -> Iterator[tuple[str, Forward]]:
    """Yield a model in every form that is timed, with its name.

    Args:
        trained: whether accuracy counts: all images then calibrate our kernels, and OpenVINO's slower int8 is tried.
    """
    fast = "bfloat16" if computes_in_bfloat16(CPU) else "float32"
    size = int(images.shape[-1])

    def opened(file: Path, dtype: str) -> Forward:
        return graph_forward(Graph(file, file.stat().st_size), Candidate("openvino", dtype), ONE_LANE, size)

    plain, rounded = work / f"{name}.onnx", work / f"{name}.int8.onnx"
    write_verified(copy.deepcopy(model), plain, size)
    if name == "dense":
        yield DENSE, opened(plain, "float32")
    if name != "dense" or fast != "float32":
        yield f"{name}, OpenVINO {fast}", opened(plain, fast)
    for symmetric in (True, False) if trained else (True,):
        settings = QuantizeSettings(images=MIN_IMAGES, symmetric=symmetric)
        rounded.write_bytes(quantized_graph(plain, images, settings).data)
        yield f"{name}, OpenVINO {'' if symmetric else 'asymmetric '}int8", opened(rounded, fast)
    if kernels_refusal() is None:
        yield f"{name}, milkweed bfloat16", program_forward(model, ONE_LANE, size)
        activations = calibrate(model, size, [images if trained else images[:CALIBRATING]])
        yield f"{name}, milkweed int8", program_forward(model, ONE_LANE, size, activations)


def rows(arch: str, size: int, **arguments: Any) -> list[dict[str, Any]]:
    """Milliseconds an image of every form of an architecture, and times as fast as the dense one in float32."""
    images = torch.randn(MIN_IMAGES, 3, size, size, generator=torch.Generator().manual_seed(0))
    operations: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as work, ExitStack() as opened:
        made: dict[str, Forward] = {}
        for name, variant in VARIANTS.items():
            try:
                model = variant.made(arch, **arguments)
            except ValueError as error:  # a ViTAE has no class token to be last
                print(f"{arch}, {name}: {error}", flush=True)
                continue
            for form, forward in forwards(name, model, Path(work), images):
                made[form], operations[form] = forward, macs(model, size).total
                opened.callback(forward.close)
        found = time_in_turns(made, BATCHES)
    dense = found[DENSE]
    return [
        {
            "arch": arch,
            "model": name,
            "ms": ms,
            "times_dense": {batch: dense[batch] / ms[batch] for batch in ms},
            "gmacs_a_second": {batch: operations[name] / ms[batch] / 1e6 for batch in ms},
        }
        for name, ms in found.items()
    ]


def measure(archs: Sequence[str]) -> dict[str, Any]:
    """All rows of all architectures, printed as they are measured."""
    before, found = os.getloadavg(), list[dict[str, Any]]()
    for arch in archs:
        for row in rows(arch, 224):
            times = ", ".join(f"{row['ms'][b]:.2f} ms ({row['times_dense'][b]:.2f}x) at {b}" for b in BATCHES)
            print(f"{arch:<24} {row['model']:<34} {times}", flush=True)
            found.append(row)
    return {**about("levers", before), "rows": found}


ARCHS = ["deit_tiny_patch16_224", "vit_small_patch16_224", "vit_base_patch16_224", "vitae_basic_tiny"]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archs", nargs="*", default=ARCHS, metavar="ARCH")
    parser.add_argument("--out", type=Path, default=Path("bench/results/levers.json"))
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)  # before what takes minutes
    document = measure(args.archs)
    args.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
