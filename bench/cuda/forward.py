"""Rows of whole forwards: a Monarch model fused, the same model in plain PyTorch, and its dense twin in three ways."""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ...models import BundleConfig, create_model, default_preprocess, macs, select_linears
from ...models.compress import densify_layer
from ...models.layers.layer_spec import layer_specs_for, layer_specs_of
from ...models.layers.monarch import MonarchLinear
from ...models.serving.fused.fuse import fuse
from ...models.serving.prepare import prepare_for_inference
from .ceilings import Ceilings
from .mlp import compile_forward
from .rows import Candidate, Row, measure
from .timing import Timer

MLPS, ALL = ("mlp",), ("mlp", "qkv", "proj")

MODELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("vit_base_patch16_224", MLPS),
    ("vit_base_patch16_224", ALL),
    ("vitae_basic_tiny", MLPS),
    ("vit_small_patch16_224", MLPS),
    ("vit_small_patch16_224", ALL),
    ("vitae_basic_small", MLPS),
    ("deit_tiny_patch16_224", MLPS),
    ("t2t_vit_14", MLPS),
)
"""Architecture and which of its linear layers are Monarch, those that goals are set for first."""

DRY_MODEL = ("deit_tiny_patch16_224", MLPS)
"""The model of dry runs, which prove the script and give no figure."""

BATCHES = (32, 1, 128, 8)

EAGER, COMPILED = "dense twin, eager launches", "dense twin, torch.compile"
"""The way most people run a model, and PyTorch's strongest: max-autotune, captured as a CUDA graph."""

GOALS: tuple[tuple[str, tuple[str, ...], tuple[int, ...], str, float], ...] = (
    ("vit_base_patch16_224", MLPS, (32, 128), COMPILED, 1.35),
    ("vit_small_patch16_224", MLPS, (32, 128), COMPILED, 1.4),
    ("vit_base_patch16_224", ALL, (32, 128), COMPILED, 1.8),
    ("vit_small_patch16_224", ALL, (32, 128), COMPILED, 1.8),
    ("vitae_basic_tiny", MLPS, (1, 32), EAGER, 3.0),
    ("vitae_basic_tiny", MLPS, (1, 32), COMPILED, 1.5),
    ("vitae_basic_small", MLPS, (1, 32), EAGER, 3.0),
    ("vitae_basic_small", MLPS, (1, 32), COMPILED, 1.5),
)
"""Architecture, layers, batches, the peer, and how many times its speed the project asks for."""

TOLERANCE = 3e-2
"""Random weights give logits without a margin; a trained model's are held to 1e-2 by the tests."""


def forward_rows(
    *,
    device: torch.device,
    dtype: torch.dtype,
    nblocks: int,
    timer: Timer,
    ceilings: Ceilings,
    out_of_time: Callable[[], bool],
    compile_seconds_left: Callable[[], float],
    models: Sequence[tuple[str, tuple[str, ...]]] = MODELS,
    batches: Sequence[int] = BATCHES,
) -> tuple[list[Row], list[str]]:
    """Rows, and what was skipped and why.

    Args:
        compile_seconds_left: time there is for torch.compile; its rows say so where it has run out.
    """
    rows: list[Row] = []
    skipped: list[str] = []
    for arch, layers in models:
        if out_of_time():
            skipped.append(f"model {arch}: out of time")
            continue
        try:
            rows += _arch_rows(arch, layers, nblocks, batches, device, dtype, timer, ceilings, compile_seconds_left)
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
    compile_seconds_left: Callable[[], float],
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

        monarch_floor, dense_floor = (ceilings.floor_us(batch * each, 0) for each in flops)
        candidates = [
            Candidate("dense twin", False, dense, dense_floor),
            Candidate(EAGER, False, dense, dense_floor, eager=True),
            Candidate("Monarch, plain PyTorch", False, plain, monarch_floor),
            Candidate("fused", True, fused, monarch_floor, report.summary),
        ]
        skipped: dict[str, str] = {}
        wanted = any(COMPILED in goal and goal[:2] == (arch, tuple(layers)) and batch in goal[2] for goal in GOALS)
        seconds_left = compile_seconds_left if wanted else _none_left
        compiled = compile_forward(dense, make_input(), seconds_left, device)
        if isinstance(compiled, str):
            skipped[COMPILED] = compiled
        else:
            candidates.append(Candidate(COMPILED, False, compiled, dense_floor))
        rows += measure(
            "model",
            what(arch, layers),
            batch,
            candidates,
            make_input,
            lambda x: exact(x.float()),
            timer=timer,
            ceilings=ceilings,
            skipped=skipped,
            tolerance=TOLERANCE,
        )
    return rows


def _none_left() -> float:
    return -1.0


def what(arch: str, layers: Sequence[str]) -> str:
    """A model's name in the rows."""
    return f"{arch} Monarch {'+'.join(layers)}"


def monarch_model(arch: str, layers: Sequence[str], nblocks: int) -> nn.Module:
    """A model of random weights, those layers Monarch."""
    with torch.device("meta"):
        shapes = create_model(arch)
    structure = layer_specs_for(shapes, select_linears(shapes, layers), nblocks=nblocks)
    torch.manual_seed(0)
    return create_model(arch, layer_specs=structure).eval()


def random_config(arch: str, model: nn.Module) -> BundleConfig:
    """The config of a `monarch_model`."""
    return BundleConfig(arch=arch, structure=layer_specs_of(model), preprocess=default_preprocess(arch))


def dense_twin(model: nn.Module) -> nn.Module:
    """The dense model of the same function."""
    dense = copy.deepcopy(model)
    for name, layer in list(dense.named_modules()):
        if isinstance(layer, MonarchLinear):
            dense.set_submodule(name, densify_layer(layer))
    return dense
