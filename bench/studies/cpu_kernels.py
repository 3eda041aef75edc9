"""Our CPU kernels beside OpenVINO and torch on one thread. Weights are untrained: this is time alone.

    python -m milkweed.bench.studies.cpu_kernels [--shapes T S B] [--out FILE]     # a layer
    python -m milkweed.bench.studies.cpu_kernels --models [ARCH ...] [--int8] [--out FILE]  # whole models

A layer is LayerNorm, MLP and residual sum, dense and Monarch, of the widths of DeiT-Tiny, ViT-S and ViT-B, with 197
tokens an image. Twelve of them are timed between a patch embedding and a classifier, less those two alone, over twelve.
`of peak` is the share of what our own product reaches from the first cache.

A model is dense, has fewer tokens or Monarch layers, or both, and is timed in turns with the dense one by OpenVINO in
float32; with --int8 the others by our own int8 alone.
"""

import argparse
import copy
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...compress.timing import time_in_turns
from ...inference.backend import Candidate
from ...inference.device import CPU, computes_in_bfloat16
from ...inference.forward import Forward, LanePlan
from ...inference.graph import Graph, graph_forward
from ...inference.program import program_forward
from ...inference.torch_forward import TorchForward
from ...kernels.cpu.library import fastest_set, multiply_again
from ...kernels.cpu.program import Embed, Factor, Operator, Program
from ...kernels.cpu.quantise import calibrated, quantised
from ...models.accounting import macs
from ...models.architectures.token_blocks import apply_token_plan
from ...models.layers.token_plan import ALL_TOKENS, TokenMerging, TokenPlan
from ...models.onnx.export import write_verified
from ...models.onnx.quantize import MIN_IMAGES, QuantizeSettings, quantized_graph
from ...models.programs.from_model import program_of
from ...models.programs.int8 import calibrate
from ...models.programs.session import ProgramSession, kernels_refusal
from ...models.serving.prepare import prepare_for_inference
from ..machine import about, save
from ..server.bundles import random_model

Row = dict[str, Any]

ARCHS = {"T": "deit_tiny_patch16_224", "S": "vit_small_patch16_224", "B": "vit_base_patch16_224"}
MODELS = [*ARCHS.values(), "vitae_basic_tiny"]
VARIANTS: dict[str, dict[str, Any]] = {
    "dense": {},
    "Monarch MLPs": {"monarch": ("mlp",)},
    "all Monarch": {"monarch": ("mlp", "qkv", "proj")},
    "28 % merged": {"tokens": TokenPlan(TokenMerging(4, 2, 0.28, 0.1), class_last=True)},
    "40 % merged": {"tokens": TokenPlan(TokenMerging(4, 2, 0.4, 0.1), class_last=True)},
    "all Monarch, 28 % merged": {
        "monarch": ("mlp", "qkv", "proj"),
        "tokens": TokenPlan(TokenMerging(4, 2, 0.28, 0.1), class_last=True),
    },
}
"""Arguments of `variant` by the name of a model."""

SIZE, BATCHES, NBLOCKS = 224, (1, 8), (1, 2, 4, 8)
ONE_LANE = LanePlan(micro_batch=1, lanes=1, threads=1)
NONE, DENSE, DENSE_INT8 = "none", "dense, OpenVINO float32", "dense, OpenVINO int8"
CALIBRATION_IMAGES = 4
"""Images of noise that calibrate our kernels' int8: what becomes of noise does not matter."""
PEAK_SECONDS = 0.5


def variant(arch: str, *, tokens: TokenPlan = ALL_TOKENS, **arguments: Any) -> nn.Module:
    """Make a model as `random_model` does, with fewer tokens if the plan says so."""
    return apply_token_plan(random_model(arch, **arguments).requires_grad_(False), tokens)


def noise(size: int) -> Tensor:
    return torch.randn(MIN_IMAGES, 3, size, size, generator=torch.Generator().manual_seed(0))


def fast_dtype() -> str:
    return "bfloat16" if computes_in_bfloat16(CPU) else "float32"


def by_openvino(model: nn.Module, file: Path, images: Tensor, dtypes: Sequence[str]) -> Iterator[tuple[str, Forward]]:
    """Yield a model in OpenVINO, in these number types and in symmetric int8, which the images calibrate."""
    size, rounded = int(images.shape[-1]), file.with_suffix(".int8.onnx")

    def opened(file: Path, dtype: str) -> Forward:
        return graph_forward(Graph(file, file.stat().st_size), Candidate("openvino", dtype), ONE_LANE, size)

    write_verified(copy.deepcopy(model), file, size)
    for dtype in dtypes:
        yield f"OpenVINO {dtype}", opened(file, dtype)
    rounded.write_bytes(quantized_graph(file, images, QuantizeSettings(images=MIN_IMAGES, symmetric=True)).data)
    yield "OpenVINO int8", opened(rounded, fast_dtype())


def model_forwards(
    name: str, model: nn.Module, work: Path, images: Tensor, *, int8: bool
) -> Iterator[tuple[str, Forward]]:
    """Yield a model in every form that is timed, with its name."""
    size = int(images.shape[-1])
    dtypes = dict.fromkeys(("float32", fast_dtype()) if name == "dense" else (fast_dtype(),))
    for form, forward in by_openvino(model, work / f"{name}.onnx", images, list(dtypes)) if not int8 else ():
        yield f"{name}, {form}", forward
    if int8 and name == "dense":
        yield DENSE, next(by_openvino(model, work / "dense.onnx", images, ["float32"]))[1]
    if kernels_refusal() is None:
        if not int8:
            yield f"{name}, milkweed bfloat16", program_forward(model, ONE_LANE, size)
        activations = calibrate(model, size, [images[:CALIBRATION_IMAGES]])
        yield f"{name}, milkweed int8", program_forward(model, ONE_LANE, size, activations)


def model_rows(arch: str, size: int = SIZE, *, int8: bool = False, **arguments: Any) -> Iterator[Row]:
    """Yield milliseconds an image of every form of an architecture, and its speedup over the dense one in float32."""
    operations: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as work, ExitStack() as opened:
        forwards: dict[str, Forward] = {}
        for name, changes in VARIANTS.items():
            try:
                model = variant(arch, **changes, **arguments)
            except ValueError as error:  # a ViTAE has no class token to be last
                print(f"{arch}, {name}: {error}", flush=True)
                continue
            for form, forward in model_forwards(name, model, Path(work), noise(size), int8=int8):
                forwards[form], operations[form] = forward, macs(model, size).total
                opened.callback(forward.close)
        times = time_in_turns(forwards, BATCHES)
    for name, ms in times.items():
        speedup = {batch: times[DENSE][batch] / ms[batch] for batch in ms}
        rate = {batch: operations[name] / ms[batch] / 1e6 for batch in ms}
        said = ", ".join(f"{ms[b]:.2f} ms ({speedup[b]:.2f}x) at {b}" for b in BATCHES)
        print(f"{arch:<24} {name:<34} {said}", flush=True)
        yield {"arch": arch, "model": name, "ms": ms, "times_dense": speedup, "gmacs_a_second": rate}


class MlpHalves(nn.Module):
    """The MLP halves of a ViT's blocks alone."""

    def __init__(self, blocks: nn.Sequential) -> None:
        super().__init__()
        self.norms = nn.ModuleList([block.get_submodule("norm2") for block in blocks])
        self.mlps = nn.ModuleList([block.get_submodule("mlp") for block in blocks])

    def forward(self, x: Tensor) -> Tensor:
        for norm, mlp in zip(self.norms, self.mlps, strict=True):
            x = x + mlp(norm(x))
        return x


def without_attention(model: nn.Module, *, layers: bool = True) -> nn.Module:
    """Return the model with the MLP halves of its blocks alone, or with nothing of them."""
    model = copy.deepcopy(model)
    halves = [MlpHalves(model.get_submodule("blocks"))] if layers else []  # type: ignore[arg-type]
    model.blocks = nn.Sequential(*halves)
    return model


def layers_of(program: Program, *, layers: bool = True) -> Program:
    """Return the program with the MLP halves of its blocks alone, or with nothing of them."""
    kept, before = list[Operator](), None
    for operator in program.operators if layers else []:
        if isinstance(operator, Factor) and ".mlp." in operator.name:
            kept += [operator] if before is None else [before, operator]
            before = None
        else:
            before = operator
    return replace(program, operators=kept)


def layer_forwards(
    arch: str, nblocks: int, size: int, work: Path, **arguments: Any
) -> Iterator[tuple[str, Forward, int]]:
    """Yield a stack in every form that is timed: its name, and its multiply-accumulates; no layers for 0 blocks."""
    images, fast, layers = noise(size), fast_dtype(), nblocks > 0
    model = variant(arch, monarch=("mlp",) if nblocks > 1 else None, nblocks=nblocks, **arguments)
    program, stack = layers_of(program_of(model, size), layers=layers), without_attention(model, layers=layers)
    name = {0: NONE, 1: "dense"}.get(nblocks, f"Monarch {nblocks}")
    assert isinstance(program.embed, Embed)
    weights = sum(operator.weight.size for operator in program.operators if isinstance(operator, Factor))
    operations = len(program.embed.start) * weights
    for form, forward in by_openvino(stack, work / f"{nblocks}.onnx", images, [fast]):
        yield f"{name}, {form}", forward, operations
    served = prepare_for_inference(stack, dtype=getattr(torch, fast))
    yield f"{name}, torch {fast}", TorchForward(served, ONE_LANE, dtype=fast, size=size, cpu_graphs=True), operations
    rounded = quantised(program, calibrated(program, [images[:2].numpy()]))
    for form, ours in (("bfloat16", program), ("int8", rounded)):
        forward = Forward(ProgramSession(ours), ONE_LANE, dtype="bfloat16", size=size)
        yield f"{name}, milkweed {form}", forward, operations


def peak(*, eight_bits: bool) -> float:
    """Multiply-accumulates a second of one thread: the best of some runs."""
    isa, best, end = fastest_set(), 0.0, time.perf_counter() + PEAK_SECONDS
    while time.perf_counter() < end:
        started = time.perf_counter()
        done = multiply_again(isa, eight_bits=eight_bits, repeats=1000)
        best = max(best, done / (time.perf_counter() - started))
    return best


def layer_rows(shape: str, size: int = SIZE, **arguments: Any) -> Iterator[Row]:
    """Yield microseconds of a layer in every form, beside OpenVINO's dense int8."""
    depth = int(arguments.get("depth", 12))
    with tempfile.TemporaryDirectory() as work, ExitStack() as opened:
        stacks, operations = dict[str, Forward](), dict[str, int]()
        for nblocks in (0, *NBLOCKS):
            for name, forward, count in layer_forwards(ARCHS[shape], nblocks, size, Path(work), **arguments):
                stacks[name], operations[name] = forward, count
                opened.callback(forward.close)
        times = less_the_ends(time_in_turns(stacks, BATCHES))
    peaks = {"int8": peak(eight_bits=True), "bfloat16": peak(eight_bits=False)}
    for name, ms in times.items():
        us = {batch: 1e3 * ms[batch] / depth for batch in ms}
        row: Row = {"shape": shape, "layer": name, "us": us}
        row["times_dense_int8"] = speedup = {batch: times[DENSE_INT8][batch] / ms[batch] for batch in ms}
        said = ", ".join(f"{us[b]:.0f} us ({speedup[b]:.2f}x) at {b}" for b in BATCHES)
        if "milkweed" in name:
            most = peaks[name.rpartition(" ")[2]]
            row["of_peak"] = {batch: operations[name] / (ms[batch] / 1e3) / most for batch in ms}
            said += "".join(f", {100 * row['of_peak'][b]:.0f} % of peak" for b in BATCHES)
        print(f"{shape} {name:<30} {said}", flush=True)
        yield row


def less_the_ends(times: Mapping[str, Mapping[int, float]]) -> dict[str, dict[int, float]]:
    """Milliseconds of the layers alone, by name and batch: less those of the same form without layers."""
    ends = {name.split(", ")[1]: ms for name, ms in times.items() if name.startswith(NONE)}
    return {
        name: {batch: ms[batch] - ends[name.split(", ")[1]][batch] for batch in ms}
        for name, ms in times.items()
        if not name.startswith(NONE)
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write all rows whenever an architecture is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=[*ARCHS], default=[*ARCHS])
    parser.add_argument("--models", nargs="*", metavar="ARCH", help=f"not given: a layer; without names: {MODELS}")
    parser.add_argument("--int8", action="store_true", help="models by our own int8 alone")
    parser.add_argument("--out", type=Path, help="default: bench/results/cpu_kernels.json or cpu_models.json")
    args = parser.parse_args(arguments)
    benchmark = "cpu_kernels" if args.models is None else "cpu_models"
    out = args.out or Path("bench/results") / f"{benchmark}.json"
    out.parent.mkdir(parents=True, exist_ok=True)  # before what takes minutes
    makers = [partial(layer_rows, shape) for shape in args.shapes]
    if args.models is not None:
        makers = [partial(model_rows, arch, int8=args.int8) for arch in args.models or MODELS]
    ours = {"instruction_set": fastest_set().name} if kernels_refusal() is None else {}
    before, rows = os.getloadavg(), list[Row]()
    for make in makers:
        rows += make()
        save(out, {**about(benchmark, before), **ours, "rows": rows})


if __name__ == "__main__":
    main()
