"""Rows of whole forwards: a Monarch model fused, the same model in plain PyTorch, and its dense twin."""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ...models import create_model, default_preprocess, macs, select_linears
from ...models.compress import densify_layer
from ...models.fused.fuse import fuse
from ...models.inference import prepare_for_inference
from ...models.monarch import MonarchLinear
from ...models.structure import monarch_structure
from .ceilings import Ceilings
from .rows import Candidate, Row, measure
from .timing import Timer

MODELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("vitae_basic_tiny", ("mlp",)),
    ("vitae_basic_small", ("mlp", "qkv", "proj")),
    ("deit_small_patch16_224", ("mlp", "qkv", "proj")),
    ("vit_base_patch16_224", ("mlp", "qkv", "proj")),
)
"""Architecture and which of its linear layers are Monarch."""

BATCHES = (1, 32, 128)

TOLERANCE = 3e-2
"""Of logits of random weights, which have no margin; a trained model's are held to 1e-2 by the tests."""


def forward_rows(
    *,
    device: torch.device,
    dtype: torch.dtype,
    nblocks: int,
    timer: Timer,
    ceilings: Ceilings,
    out_of_time: Callable[[], bool],
    models: Sequence[tuple[str, tuple[str, ...]]] = MODELS,
    batches: Sequence[int] = BATCHES,
) -> tuple[list[Row], list[str]]:
    """Rows, and what was skipped and why."""
    rows: list[Row] = []
    skipped: list[str] = []
    for arch, layers in models:
        if out_of_time():
            skipped.append(f"model {arch}: out of time")
            continue
        try:
            rows += _arch_rows(arch, layers, nblocks, batches, device, dtype, timer, ceilings)
        except ImportError as error:
            skipped.append(f"model {arch}: {error}")
    return rows, skipped


def _arch_rows(
    arch: str,
    layers: Sequence[str],
    nblocks: int,
    batches: Sequence[int],
    device: torch.device,
    dtype: torch.dtype,
    timer: Timer,
    ceilings: Ceilings,
) -> list[Row]:
    model = monarch_model(arch, layers, nblocks)
    size = int(default_preprocess(arch)["size"])
    dense = dense_twin(model)
    exact = copy.deepcopy(model).eval().to(device)
    flops = 2.0 * macs(model, size).total, 2.0 * macs(dense, size).total
    plain = prepare_for_inference(copy.deepcopy(model), dtype=dtype).to(device)
    dense = prepare_for_inference(dense, dtype=dtype).to(device)
    fused = copy.deepcopy(model)
    report = fuse(fused, device=device, dtype=dtype, image_size=size, batch_sizes=batches)
    rows: list[Row] = []
    for batch in batches:

        def make_input(batch: int = batch) -> Tensor:
            return torch.randn(batch, 3, size, size, device=device).to(dtype)

        candidates = [
            Candidate("dense twin", False, dense, ceilings.floor_us(batch * flops[1], 0)),
            Candidate("Monarch, plain PyTorch", False, plain, ceilings.floor_us(batch * flops[0], 0)),
            Candidate("fused", True, fused, ceilings.floor_us(batch * flops[0], 0), report.summary),
        ]
        rows += measure(
            "model",
            f"{arch} Monarch {'+'.join(layers)}",
            batch,
            candidates,
            make_input,
            lambda x: exact(x.float()),
            timer=timer,
            ceilings=ceilings,
            tolerance=TOLERANCE,
        )
    return rows


def monarch_model(arch: str, layers: Sequence[str], nblocks: int) -> nn.Module:
    """A model of random weights, those layers Monarch."""
    with torch.device("meta"):
        shapes = create_model(arch)
    structure = monarch_structure(shapes, select_linears(shapes, layers), nblocks, None)
    torch.manual_seed(0)
    return create_model(arch, structure=structure).eval()


def dense_twin(model: nn.Module) -> nn.Module:
    """The dense model of the same function."""
    dense = copy.deepcopy(model)
    for name, layer in list(dense.named_modules()):
        if isinstance(layer, MonarchLinear):
            dense.set_submodule(name, densify_layer(layer))
    return dense
