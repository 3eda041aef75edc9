"""Rows of whole forwards: Monarch models fused and in plain PyTorch, and their dense twin in three ways."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ....kernels.impls.base import Impl
from ....models import create_model, default_preprocess, macs, select_linears
from ....models.compress import densify_layer
from ....models.layers.layer_spec import layer_specs_for
from ....models.layers.monarch import MonarchLinear
from ....models.serving.fused.fuse import fuse
from ....models.serving.fused.tuning import Tuning
from ....models.serving.prepare import prepare_for_inference
from ..goals import TWIN_COMPILED, TWIN_EAGER
from ..journal import Record
from .bench import Bench, best_names
from .measure import Candidate, Subject, Work, measure
from .mlp import compile_forward
from .shapes import FORWARDS

TOLERANCE = 3e-2
"""Random weights give logits without a margin; a trained model's are held to 1e-2 by the tests."""

ALWAYS = ("torch", "dense", "batched", "sdpa")
"""Families that a forward may use whatever the rows of its parts say."""


def proven(bench: Bench) -> list[Impl]:
    """Return the impls that were the best of their family in the rows of MLPs and attention; all if there are no rows.

    So fusing uses the plans that were found there, and times few candidates.
    """
    best = best_names(bench.earlier)
    kept = [impl for impl in bench.impls if impl.name in best or impl.name.startswith(ALWAYS)]
    return kept if any(not impl.name.startswith(ALWAYS) for impl in kept) else list(bench.impls)


@dataclass(frozen=True)
class Twins:
    """A Monarch model and the dense one of the same function, in float32 on the CPU, and what gives right answers."""

    monarch: nn.Module
    dense: nn.Module
    truth: Callable[[Tensor], Tensor]
    size: int


def forward_rows(arch: str, batch: int, bench: Bench) -> list[Record]:
    """Make all rows of one architecture and batch: the dense model, beside each way to have Monarch layers."""
    size = int(default_preprocess(arch)["size"])

    def make_input() -> Tensor:
        return torch.randn(batch, 3, size, size, device=bench.device).to(bench.dtype)

    candidates: list[Candidate] = []
    skipped: dict[str, str] = {}
    for layers in FORWARDS[arch].layers:
        twins = make_twins(arch, layers, size, bench)
        if not candidates:  # the dense models of all sets of layers cost the same: one is compiled and timed
            candidates += _dense(twins, batch, bench, make_input(), skipped)
        candidates += _monarch(twins, "+".join(layers), batch, bench)
    subject = Subject("forward", arch, batch, make_input, twins.truth)
    return measure(subject, candidates, bench, skipped=skipped, tolerance=TOLERANCE)


def make_twins(arch: str, layers: Sequence[str], size: int, bench: Bench) -> Twins:
    """Make both models, and a float32 copy on the device."""
    model = monarch_model(arch, layers, bench.nblocks)
    exact = copy.deepcopy(model).to(bench.device)
    return Twins(model, dense_twin(model), lambda x: exact(x.float()), size)


def _dense(twins: Twins, batch: int, bench: Bench, x: Tensor, skipped: dict[str, str]) -> list[Candidate]:
    work = Work(2.0 * batch * macs(twins.dense, twins.size).total, 0)
    dense = prepare_for_inference(twins.dense, dtype=bench.dtype).to(bench.device)
    found = [
        Candidate("dense twin", False, dense, work, truth=twins.truth),
        Candidate(TWIN_EAGER, False, dense, work, eager=True, truth=twins.truth),
    ]
    compiled = compile_forward(dense, x)
    if isinstance(compiled, str):
        skipped[TWIN_COMPILED] = compiled
        return found
    return [*found, Candidate(TWIN_COMPILED, False, compiled, work, truth=twins.truth)]


def _monarch(twins: Twins, layers: str, batch: int, bench: Bench) -> list[Candidate]:
    work = Work(2.0 * batch * macs(twins.monarch, twins.size).total, 0)
    plain = prepare_for_inference(copy.deepcopy(twins.monarch), dtype=bench.dtype).to(bench.device)
    report = fuse(
        twins.monarch,
        device=bench.device,
        dtype=bench.dtype,
        image_size=twins.size,
        batch_sizes=[batch],
        tuning=Tuning("off" if bench.dry else "auto", impls=proven(bench)),
        kernels=bench.kernels(),
    )
    return [
        Candidate(f"Monarch {layers}, plain PyTorch", False, plain, work, truth=twins.truth),
        Candidate(f"fused {layers}", True, twins.monarch, work, report.summary, truth=twins.truth),
    ]


def monarch_model(arch: str, layers: Sequence[str], nblocks: int) -> nn.Module:
    """A model of random weights, those layers Monarch."""
    with torch.device("meta"):
        shapes = create_model(arch)
    structure = layer_specs_for(shapes, select_linears(shapes, layers), nblocks=nblocks)
    torch.manual_seed(0)
    return create_model(arch, layer_specs=structure).eval()


def dense_twin(model: nn.Module) -> nn.Module:
    """The dense model of the same function."""
    dense = copy.deepcopy(model)
    for name, layer in list(dense.named_modules()):
        if isinstance(layer, MonarchLinear):
            dense.set_submodule(name, densify_layer(layer))
    return dense
