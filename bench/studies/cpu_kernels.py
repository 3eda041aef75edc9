"""A layer of our CPU kernels beside OpenVINO's and torch's: LayerNorm, MLP and residual sum, dense and Monarch.

    python -m milkweed.bench.studies.cpu_kernels [--shapes T S B] [--out FILE]

One thread, the widths of DeiT-Tiny, ViT-S and ViT-B, 197 tokens an image, one image and eight. Twelve layers are timed
between a patch embedding and a classifier, less those two alone, over twelve; all in turns. `of peak` is the share of
what our own product reaches from the first cache.
"""

import argparse
import copy
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...inference.backend import Candidate
from ...inference.device import CPU, computes_in_bfloat16
from ...inference.forward import Forward, LanePlan
from ...inference.graph import Graph, graph_forward
from ...inference.torch_forward import TorchForward
from ...jobs.search.timing import time_in_turns
from ...kernels.cpu.library import fastest_set, multiply_again
from ...kernels.cpu.program import Embed, Factor, Operator, Program
from ...kernels.cpu.quantise import calibrated, quantised
from ...models import create_model, layer_specs_for
from ...models.layers.layer_spec import replace_linears
from ...models.layers.select import select_linears
from ...models.onnx.export import write_verified
from ...models.onnx.quantize import MIN_IMAGES, QuantizeSettings, quantized_graph
from ...models.programs.from_model import program_of
from ...models.programs.session import ProgramSession
from ...models.serving.prepare import prepare_for_inference
from ..machine import about

ARCHS = {"T": "deit_tiny_patch16_224", "S": "vit_small_patch16_224", "B": "vit_base_patch16_224"}
NBLOCKS = (1, 2, 4, 8)
NONE = "none"
BATCHES = (1, 8)
ONE_LANE = LanePlan(micro_batch=1, lanes=1, threads=1)
PEAK_SECONDS = 0.5


class Layers(nn.Module):
    """The MLP halves of a ViT's blocks alone."""

    def __init__(self, blocks: nn.Sequential) -> None:
        super().__init__()
        self.norms = nn.ModuleList([block.get_submodule("norm2") for block in blocks])
        self.mlps = nn.ModuleList([block.get_submodule("mlp") for block in blocks])

    def forward(self, x: Tensor) -> Tensor:
        for norm, mlp in zip(self.norms, self.mlps, strict=True):
            x = x + mlp(norm(x))
        return x


def made(arch: str, nblocks: int, **arguments: Any) -> nn.Module:
    """Make a ViT with dense MLPs, or Monarch ones where there is more than one block."""
    torch.manual_seed(0)
    model = create_model(arch, **arguments)
    if nblocks > 1:
        replace_linears(model, layer_specs_for(model, select_linears(model, ["mlp"]), "monarch", nblocks=nblocks))
    return model.eval().requires_grad_(False)


def without_attention(model: nn.Module, *, layers: bool = True) -> nn.Module:
    """Return the model with the MLP halves of its blocks alone, or with nothing of them."""
    model = copy.deepcopy(model)
    model.blocks = nn.Sequential(*[Layers(model.get_submodule("blocks"))] if layers else [])  # type: ignore[arg-type]
    return model


def layers_of(program: Program, *, layers: bool = True) -> Program:
    """Return the program with the MLP halves of its blocks alone, or with nothing of them."""
    if not layers:
        return replace(program, operators=[])
    kept, before = list[Operator](), None
    for operator in program.operators:
        if isinstance(operator, Factor) and ".mlp." in operator.name:
            kept += [operator] if before is None else [before, operator]
            before = None
        else:
            before = operator
    return replace(program, operators=kept)


def macs(program: Program, tokens: int) -> int:
    """Multiply-accumulates of an image in the factors between embedding and head."""
    return tokens * sum(each.weight.size for each in program.operators if isinstance(each, Factor))


def forwards(arch: str, nblocks: int, size: int, work: Path, **arguments: Any) -> Iterator[tuple[str, Forward, int]]:
    """Yield a stack in every form that is timed: its name, and its multiply-accumulates; no layers for 0 blocks."""
    images = torch.randn(MIN_IMAGES, 3, size, size, generator=torch.Generator().manual_seed(0))
    fast = "bfloat16" if computes_in_bfloat16(CPU) else "float32"
    whole, layers = made(arch, nblocks, **arguments), nblocks > 0
    program, stack = layers_of(program_of(whole, size), layers=layers), without_attention(whole, layers=layers)
    name = {0: NONE, 1: "dense"}.get(nblocks, f"Monarch {nblocks}")
    assert isinstance(program.embed, Embed)
    operations = macs(program, len(program.embed.start))

    def opened(file: Path) -> Forward:
        return graph_forward(Graph(file, file.stat().st_size), Candidate("openvino", fast), ONE_LANE, size)

    plain, rounded = work / f"{nblocks}.onnx", work / f"{nblocks}.int8.onnx"
    write_verified(copy.deepcopy(stack), plain, size)
    rounded.write_bytes(quantized_graph(plain, images, QuantizeSettings(images=MIN_IMAGES, symmetric=True)).data)
    yield f"{name}, OpenVINO int8", opened(rounded), operations
    yield f"{name}, OpenVINO {fast}", opened(plain), operations
    served = prepare_for_inference(stack, dtype=getattr(torch, fast))
    served_forward = TorchForward(served, ONE_LANE, dtype=fast, size=size, cpu_graphs=True)
    yield f"{name}, torch {fast}", served_forward, operations
    for form, each in (
        ("bfloat16", program),
        ("int8", quantised(program, calibrated(program, [images[:2].numpy()]))),
    ):
        session = ProgramSession(each)
        forward = Forward(session, ONE_LANE, dtype="bfloat16", size=size)
        yield f"{name}, milkweed {form}", forward, operations


def peak(*, eight_bits: bool) -> float:
    """Multiply-accumulates a second of one thread: the best of some runs."""
    isa, best, end = fastest_set(), 0.0, time.perf_counter() + PEAK_SECONDS
    while time.perf_counter() < end:
        started = time.perf_counter()
        done = multiply_again(isa, eight_bits=eight_bits, repeats=1000)
        best = max(best, done / (time.perf_counter() - started))
    return best


def rows(shape: str, arch: str, size: int, **arguments: Any) -> list[dict[str, Any]]:
    """Microseconds of a layer in every form, beside OpenVINO's dense int8."""
    depth = int(arguments.get("depth", 12))
    with tempfile.TemporaryDirectory() as work, ExitStack() as opened:
        stacks, operations = dict[str, Forward](), dict[str, int]()
        for nblocks in (0, *NBLOCKS):
            for name, forward, count in forwards(arch, nblocks, size, Path(work), **arguments):
                stacks[name], operations[name] = forward, count
                opened.callback(forward.close)
        found = time_in_turns(stacks, BATCHES)
    found = less_the_ends(found)
    base = found[next(iter(found))]
    peaks = {"int8": peak(eight_bits=True), "bfloat16": peak(eight_bits=False)}
    table = []
    for name, ms in found.items():
        row: dict[str, Any] = {"shape": shape, "layer": name, "us": {b: 1e3 * ms[b] / depth for b in ms}}
        row["times_dense_int8"] = {b: base[b] / ms[b] for b in ms}
        if "milkweed" in name:
            most = peaks[name.rpartition(" ")[2]]
            row["of_peak"] = {b: operations[name] / (ms[b] / 1e3) / most for b in ms}
        table.append(row)
    return table


def less_the_ends(found: Mapping[str, Mapping[int, float]]) -> dict[str, dict[int, float]]:
    """Milliseconds of the layers alone, by name and batch: less those of the same form without layers."""
    ends = {name.split(", ")[1]: ms for name, ms in found.items() if name.startswith(NONE)}
    return {
        name: {batch: ms[batch] - ends[name.split(", ")[1]][batch] for batch in ms}
        for name, ms in found.items()
        if not name.startswith(NONE)
    }


def measure(shapes: Sequence[str], out: Path) -> None:
    """Print the rows of each shape and write them all, once it is measured."""
    before, found = os.getloadavg(), list[dict[str, Any]]()
    for shape in shapes:
        for row in rows(shape, ARCHS[shape], 224):
            share = "".join(f", {100 * row['of_peak'][b]:.0f} % of peak" for b in BATCHES if "of_peak" in row)
            times = ", ".join(f"{row['us'][b]:.0f} us ({row['times_dense_int8'][b]:.2f}x) at {b}" for b in BATCHES)
            print(f"{shape} {row['layer']:<30} {times}{share}", flush=True)
            found.append(row)
        document = {**about("cpu_kernels", before), "instruction_set": fastest_set().name, "rows": found}
        out.write_text(json.dumps(document, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=[*ARCHS], default=[*ARCHS])
    parser.add_argument("--out", type=Path, default=Path("bench/results/cpu_kernels.json"))
    args = parser.parse_args(arguments)
    args.out.parent.mkdir(parents=True, exist_ok=True)  # before what takes minutes
    measure(args.shapes, args.out)


if __name__ == "__main__":
    main()
