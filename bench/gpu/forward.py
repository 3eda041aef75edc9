"""Rows of whole models: Monarch ones fused and in plain PyTorch beside their dense twin; trained ones beside float64.

Forwards of random weights are timed. Trained models show, on photographs, what two-byte numbers and kernels do to their
answers.
"""

import copy
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from ...kernels.tuning.verify import relative_error
from ...models import create_model, default_preprocess, load_bundle, macs, select_linears
from ...models.architectures.token_blocks import apply_token_plan
from ...models.divergence import divergence
from ...models.layers.monarch import MonarchLinear
from ...models.layers.select import layer_specs_for
from ...models.layers.token_plan import TokenMerging, TokenPlan
from ...models.programs.eight_bits import eight_bits_of
from ...models.programs.int8 import calibrate
from ...models.projection.to_dense import to_dense
from ...models.serving.fused.eight_bits import EightBits
from ...models.serving.fused.fuse import fuse
from ...models.serving.fused.tuning import Tuning
from ...models.serving.prepare import prepare_for_inference
from .journal import Absent, Record
from .measure import Bench, Candidate, Forward, Work, bench_of, measure
from .plan import FORWARDS, LEVERS, MERGED, TWIN_COMPILED, TWIN_EAGER, Task
from .rows import compile_forward

TOLERANCE = 3e-2
"""Random weights give logits without a margin; a trained model's are held to 1e-2 by the tests."""

LEVER_TOLERANCE, CALIBRATION = 0.2, 2
"""Without a margin rounding decides which tokens merge, and 8 bits cost more; images that 8 bits are fitted to."""

PHOTOS = 32
"""Photographs of a batch of trained models; a dry run has no more."""

DTYPES = (torch.bfloat16, torch.float16)


@torch.inference_mode()
def forward(task: Task, unit: str) -> list[Record]:
    """Make all rows of one architecture and batch: the dense model, beside each way to have Monarch layers."""
    (_, arch, batch, _), bench = unit.split("/"), bench_of(task)
    size = int(default_preprocess(arch)["size"])
    x = torch.randn(int(batch), 3, size, size, device=bench.device).to(bench.dtype)
    candidates: list[Candidate] = []
    for layers in FORWARDS[arch][0]:
        name, model = "+".join(layers), monarch_model(arch, layers, bench.nblocks)
        truth = partial(_float32, copy.deepcopy(model).to(bench.device))
        if not candidates:  # the dense models of all sets of layers cost the same: one is compiled and timed
            candidates += _dense(model, truth, x, bench)
        work = Work(2.0 * len(x) * macs(model, size).total, 0)
        plain = prepare_for_inference(copy.deepcopy(model), dtype=bench.dtype).to(bench.device)
        note = fused(model, bench, bench.dtype, size, len(x))
        candidates += [
            Candidate(f"Monarch {name}, plain PyTorch", False, plain, work, truth=truth),
            Candidate(f"fused {name}", True, model, work, note, truth=truth),
        ]
    return measure(("forward", arch, len(x)), x, truth, candidates, bench, TOLERANCE)


@torch.inference_mode()
def levers(task: Task, unit: str) -> list[Record]:
    """Make all rows of one architecture and batch: the dense model, and what tokens and 8 bits make of it."""
    (_, arch, batch, _), bench = unit.split("/"), bench_of(task)
    size = int(default_preprocess(arch)["size"])
    torch.manual_seed(0)
    plain = create_model(arch).eval()
    x = torch.randn(int(batch), 3, size, size, device=bench.device).to(bench.dtype)
    candidates = _dense(plain, partial(_float32, copy.deepcopy(plain).to(bench.device)), x, bench)
    for name, (merges, in_8_bits) in LEVERS.items():
        model = copy.deepcopy(plain)
        if merges:
            model = apply_token_plan(model, TokenPlan(TokenMerging(share=MERGED))).eval()
        layers = None
        if in_8_bits:
            photos = torch.randn(CALIBRATION, 3, size, size)
            layers = eight_bits_of(model, size, calibrate(model, size, [photos]))
        truth = partial(_float32, copy.deepcopy(model).to(bench.device))
        work = Work(2.0 * len(x) * macs(model, size).total, 0)
        note = fused(model, bench, bench.dtype, size, len(x), layers)
        candidates.append(Candidate(name, True, model, work, note, truth=truth, tolerance=LEVER_TOLERANCE))
    return measure(("levers", arch, len(x)), x, truth, candidates, bench, TOLERANCE)


def _float32(model: nn.Module, x: Tensor) -> Tensor:
    return model(x.float())


def _dense(monarch: nn.Module, truth: Forward, x: Tensor, bench: Bench) -> list[Candidate]:
    """Make the dense model of the same function, in three ways."""
    twin = copy.deepcopy(monarch)
    for name, layer in list(twin.named_modules()):
        if isinstance(layer, MonarchLinear):
            twin.set_submodule(name, to_dense(layer))
    work = Work(2.0 * len(x) * macs(twin, x.shape[-1]).total, 0)
    dense = prepare_for_inference(twin, dtype=bench.dtype).to(bench.device)
    return [
        Candidate("dense twin", False, dense, work, truth=truth),
        Candidate(TWIN_EAGER, False, dense, work, eager=True, truth=truth),
        Candidate(TWIN_COMPILED, False, compile_forward(dense, x), work, truth=truth),
    ]


def fused(
    model: nn.Module,
    bench: Bench,
    dtype: torch.dtype,
    size: int,
    batch: int,
    eight_bits: EightBits | None = None,
) -> str:
    """Fuse a model in place, by the impls that the rows of its parts showed to be the best; return the summary."""
    report = fuse(
        model,
        device=bench.device,
        dtype=dtype,
        image_size=size,
        batch_sizes=[batch],
        tuning=Tuning("off" if bench.dry else "auto", impls=bench.proven()),
        kernels=bench.kernels(),
        eight_bits=eight_bits,
    )
    return report.summary


def monarch_model(arch: str, layers: Sequence[str], nblocks: int) -> nn.Module:
    """Make a model of random weights, those layers Monarch."""
    with torch.device("meta"):
        shapes = create_model(arch)
    structure = layer_specs_for(shapes, select_linears(shapes, layers), nblocks=nblocks)
    torch.manual_seed(0)
    return create_model(arch, layer_specs=structure).eval()


@torch.inference_mode()
def numerics(task: Task, unit: str) -> Iterator[Record]:
    """Compare the logits of each bundle's model in two-byte numbers with its own in float64.

    Raises:
        Absent: no bundle or no photographs were named.
    """
    if not task.bundles or task.photos is None:
        raise Absent("it needs trained models and photographs: --bundles and --photos")
    from ...jobs.dataset import image_files  # needs a decoder

    bench, files = bench_of(task), image_files(Path(task.photos))[: PHOTOS if task.dry_run else None]
    for bundle in task.bundles:
        yield from bundle_rows(Path(bundle), files, bench)


def bundle_rows(bundle: Path, files: Sequence[Path], bench: Bench) -> Iterator[Record]:
    """Make the rows of one bundle: fused, and in plain PyTorch, which shows what the number type alone does.

    An image that cannot be read is left out.
    """
    from ...loaders.dataset.evaluation import PreparedImages
    from ...loaders.dataset.training import Sample
    from ...loaders.preprocess.spec import PreprocessSpec

    model, config = load_bundle(bundle)
    spec = PreprocessSpec.from_dict(config.preprocess)
    prepared = PreparedImages([Sample(file, None) for file in files], spec, PHOTOS)
    inputs = [images.to(bench.device) for images, _ in prepared]
    right = logits(copy.deepcopy(model).double().to(bench.device), inputs, torch.float64)
    for dtype in DTYPES:
        plain = prepare_for_inference(copy.deepcopy(model), dtype=dtype).to(bench.device)
        ours = copy.deepcopy(model)
        note = fused(ours, bench, dtype, spec.size, PHOTOS)
        for name, way, said in (("fused", ours, note), ("plain PyTorch", plain, "")):
            where = {"what": bundle.name, "batch": PHOTOS, "candidate": f"{name}, {str(dtype).removeprefix('torch.')}"}
            yield {**where, "figures": compared(logits(way, inputs, dtype), right), "note": said}


def logits(model: nn.Module, inputs: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Compute the logits of all images, float64 on the CPU."""
    return torch.cat([model(pixels.to(dtype)).double().cpu() for pixels in inputs])


def compared(ours: Tensor, right: Tensor) -> dict[str, float]:
    """Compare logits (n, classes): the relative error of all, the worst of one image, KL, percent of equal classes."""
    worst = ((ours - right).norm(dim=1) / right.norm(dim=1)).max()
    answers = divergence(right.log_softmax(1), ours.log_softmax(1))
    return {
        "images": answers.images,
        "logits_error": float(f"{relative_error(ours, right):.3g}"),
        "worst_logits_error": float(f"{worst:.3g}"),
        "kl": float(f"{answers.kl:.3g}"),
        "agreement": round(answers.agreement, 2),
    }
