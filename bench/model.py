"""Dense against structured on this machine: whole forwards and the MLP block alone, interleaved in one run.

Both sides compute the same function: the dense one is the structured one densified. Structured is Monarch, unless a
bundle holds layers of other kinds; the figures are called `monarch` either way. Calls alternate, so that
whatever else the machine does hits both; medians of wall time, and of CPU time over all threads.
"""

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..kernels.ops import decide, packed_mlp
from ..kernels.packing import pack_monarch
from ..models import default_preprocess, load_bundle, macs
from ..models.layers.monarch import MonarchLinear
from ..models.layers.select import layer_specs_of
from ..models.projection.to_dense import model_to_dense, to_dense
from ..models.serving.prepare import prepare_for_inference
from .machine import about, torch_threads
from .server.bundles import random_model
from .turns import Spent, in_turns

DEFAULT_OUT = Path("bench/results/model.json")

ARCHS = ("vitae_basic_tiny", "deit_tiny_patch16_224")  # where neither a bundle nor an architecture is named
MLPS = {"vit_small": (384, 1536), "vit_base": (768, 3072)}  # width and hidden width of the published models
MLP_ROWS = 8 * 197  # tokens of eight images at 224 px, patch 16, with the class token
LEAST_ROUNDS = 7
DTYPES = ("float32", "bfloat16")

Call = Callable[[], Tensor]


@dataclass(frozen=True)
class Pair:
    """Two calls that compute the same; an MLP's images are those whose tokens are the rows, its MACs those of one."""

    what: str
    name: str
    dtype: str
    images: int
    dense: Call
    monarch: Call
    macs_dense: int
    macs_monarch: int


def run(
    bundle: Path | None = None,
    *,
    archs: Sequence[str] = (),
    layers: Sequence[str] = ("mlp",),
    nblocks: int = 4,
    batch_sizes: Sequence[int] = (1, 8),
    threads: int = 1,
    seconds: float = 3.0,
    mlp: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Measure on the CPU; the result is plain data: machine, versions, settings, rows.

    Args:
        bundle: with structured layers; compared with itself densified.
        archs: measured with random weights, `layers` of them Monarch.
        seconds: of measuring a row, at least LEAST_ROUNDS rounds.
        mlp: measure the MLP blocks of MLPS too.
        progress: called with rows done and in all.

    Raises:
        ValueError: a bundle without structured layers or with one that cannot be dense, or arguments the models do
            not take.
    """
    makers: list[Callable[[str], Iterator[Pair]]] = [partial(_bundle_pairs, bundle, batch_sizes)] if bundle else []
    makers += [partial(_arch_pairs, arch, layers, nblocks, batch_sizes) for arch in archs]
    total = (len(makers) * len(batch_sizes) + mlp * len(MLPS)) * len(DTYPES)
    makers += [partial(_mlp_pairs, nblocks)] * mlp
    load_before, rows = os.getloadavg(), list[dict[str, Any]]()
    with torch_threads(threads), torch.inference_mode():
        for pair in (pair for make in makers for dtype in DTYPES for pair in make(dtype)):
            rows.append(measure(pair, seconds))
            if progress:
                progress(len(rows), total)
    settings: dict[str, Any] = {"bundle": bundle and bundle.name, "archs": list(archs), "layers": list(layers)}
    settings |= {"nblocks": nblocks, "threads": threads, "seconds_per_row": seconds, "mlp_rows": MLP_ROWS}
    settings["kernel"] = decide(torch.device("cpu"), differentiable=False)
    return {**about("model", load_before), "settings": settings, "rows": rows}


def _bundle_pairs(bundle: Path, batch_sizes: Sequence[int], dtype: str) -> Iterator[Pair]:
    model, config = load_bundle(bundle)
    if not layer_specs_of(model):
        raise ValueError(f"bundle {bundle}: has no structured layer, nothing to compare: compress it first")
    size = int(config.preprocess["size"])
    yield from _forward_pairs(f"{config.arch} {config.version}", model, size, dtype, batch_sizes)


def _arch_pairs(
    arch: str, layers: Sequence[str], nblocks: int, batch_sizes: Sequence[int], dtype: str
) -> Iterator[Pair]:
    model = random_model(arch, layers, nblocks)
    yield from _forward_pairs(arch, model, int(default_preprocess(arch)["size"]), dtype, batch_sizes)


def _forward_pairs(name: str, model: nn.Module, size: int, dtype: str, batch_sizes: Sequence[int]) -> Iterator[Pair]:
    """Serving forms of `model` and of the dense model that computes the same."""
    numbers = getattr(torch, dtype)
    dense = copy.deepcopy(model)
    try:
        model_to_dense(dense)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    cost = macs(dense, size).total, macs(model, size).total
    dense = prepare_for_inference(dense, dtype=numbers)
    monarch = prepare_for_inference(copy.deepcopy(model), dtype=numbers)
    for count in batch_sizes:
        x = torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0)).to(numbers)
        yield Pair("forward", name, dtype, count, partial(dense, x), partial(monarch, x), *cost)


def _mlp_pairs(nblocks: int, dtype: str) -> Iterator[Pair]:
    """fc2(GELU(fc1(x))): two F.linear against the fused kernel, same weights."""
    numbers = getattr(torch, dtype)
    for name, (width, hidden) in MLPS.items():
        torch.manual_seed(0)
        widths = ((width, hidden), (hidden, width))
        layers = [MonarchLinear(inputs, outputs, nblocks=nblocks) for inputs, outputs in widths]
        packed1, packed2 = (
            pack_monarch(fc.blkdiag1, fc.blkdiag2, fc.bias, in_features=i, out_features=o, dtype=numbers)
            for fc, (i, o) in zip(layers, widths, strict=True)
        )
        dense1, dense2 = (to_dense(fc).to(numbers) for fc in layers)
        x = torch.randn(MLP_ROWS, width).to(numbers)
        tokens = MLP_ROWS // 8
        yield Pair(
            "mlp",
            f"{name} mlp {width}-{hidden}",
            dtype,
            8,
            lambda x=x, fc1=dense1, fc2=dense2: fc2(F.gelu(fc1(x))),  # type: ignore[misc]
            lambda x=x, fc1=packed1, fc2=packed2: packed_mlp(x, fc1, fc2),  # type: ignore[misc]
            tokens * 2 * width * hidden,
            tokens * sum(fc.blkdiag1.numel() + fc.blkdiag2.numel() for fc in layers),
        )


def measure(pair: Pair, seconds: float) -> dict[str, Any]:
    """The two calls in turns until the time is used up.

    Ratios are dense over Monarch, above 1 where Monarch is faster. `relative_difference` is |monarch - dense| / |dense|
    of the outputs, Frobenius. Times are medians over rounds, `wall_iqr_ms` the distance between the quartiles.
    """
    dense, monarch = pair.dense().double(), pair.monarch().double()
    spent = in_turns({"dense": pair.dense, "monarch": pair.monarch}, LEAST_ROUNDS, seconds)
    sides = {side: _timing(rounds) for side, rounds in spent.items()}
    return {
        **{name: getattr(pair, name) for name in ("what", "name", "dtype", "images")},
        "rounds": len(spent["dense"]),
        **sides,
        "ratio_wall": round(sides["dense"]["wall_ms"] / sides["monarch"]["wall_ms"], 3),
        "ratio_cpu": round(sides["dense"]["cpu_ms"] / sides["monarch"]["cpu_ms"], 3),
        "relative_difference": float(f"{float((monarch - dense).norm() / dense.norm()):.3g}"),
        "macs_dense": pair.macs_dense,
        "macs_monarch": pair.macs_monarch,
    }


def _timing(spent: Spent) -> dict[str, float]:
    wall, cpu = zip(*spent, strict=True)
    low, _, high = quantiles(wall, n=4)
    return {"wall_ms": round(median(wall), 4), "wall_iqr_ms": round(high - low, 4), "cpu_ms": round(median(cpu), 4)}
