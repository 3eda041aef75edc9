"""Rows of what two-byte numbers and kernels do to a trained model's answers, on photographs, beside float64."""

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from ...jobs.dataset import image_files
from ...kernels.tuning.verify import relative_error
from ...loaders.dataset.evaluation import PreparedImages
from ...loaders.dataset.training import Sample
from ...loaders.preprocess.spec import PreprocessSpec
from ...models import load_bundle
from ...models.divergence import divergence
from ...models.serving.fused.fuse import fuse
from ...models.serving.fused.tuning import Tuning
from ...models.serving.prepare import prepare_for_inference
from .child import Measure, Task
from .journal import Absent, Record, Writer
from .rows.bench import Bench, bench_of
from .rows.forward import proven

BATCH = 32
DTYPES = (torch.bfloat16, torch.float16)


def numerics(task: Task, writer: Writer) -> Measure:
    """Return what compares the logits of each bundle's model in two-byte numbers with its own in float64.

    Raises:
        Absent: no bundle or no photographs were named.
    """
    if not task.bundles or task.photos is None:
        raise Absent("it needs trained models and photographs: --bundles and --photos")
    bench, files = bench_of(task, writer), image_files(Path(task.photos))[: BATCH if task.dry else None]

    @torch.inference_mode()
    def measure(unit: str) -> None:
        for bundle in task.bundles:
            for row in bundle_rows(Path(bundle), files, bench):
                writer({**row, "unit": unit, "round": 1})

    return measure


def bundle_rows(bundle: Path, files: Sequence[Path], bench: Bench) -> Iterator[Record]:
    """Make the rows of one bundle: fused, and in plain PyTorch, which shows what the number type alone does.

    An image that cannot be read is left out.
    """
    model, config = load_bundle(bundle)
    spec = PreprocessSpec.from_dict(config.preprocess)
    prepared = PreparedImages([Sample(file, None) for file in files], spec, BATCH)
    inputs = [images.to(bench.device) for images, _ in prepared]
    right = logits(copy.deepcopy(model).double().to(bench.device), inputs, torch.float64)
    for dtype in DTYPES:
        plain = prepare_for_inference(copy.deepcopy(model), dtype=dtype).to(bench.device)
        fused = copy.deepcopy(model)
        report = fuse(
            fused,
            device=bench.device,
            dtype=dtype,
            image_size=spec.size,
            batch_sizes=[BATCH],
            tuning=Tuning("off" if bench.dry else "auto", impls=proven(bench)),
            kernels=bench.kernels(),
        )
        for name, found, note in (("fused", fused, report.summary), ("plain PyTorch", plain, "")):
            figures = compared(logits(found, inputs, dtype), right)
            candidate = f"{name}, {str(dtype).removeprefix('torch.')}"
            yield {"what": bundle.name, "batch": BATCH, "candidate": candidate, "figures": figures, "note": note}


def logits(model: nn.Module, inputs: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Compute the logits of all images, float64 on the CPU."""
    return torch.cat([model(pixels.to(dtype)).double().cpu() for pixels in inputs])


def compared(found: Tensor, right: Tensor) -> dict[str, float]:
    """Compare logits (n, classes): the relative error of all, the worst of one image, KL, percent of equal classes."""
    worst = ((found - right).norm(dim=1) / right.norm(dim=1)).max()
    answers = divergence(right.log_softmax(1), found.log_softmax(1))
    return {
        "images": answers.images,
        "logits_error": float(f"{relative_error(found, right):.3g}"),
        "worst_logits_error": float(f"{worst:.3g}"),
        "kl": float(f"{answers.kl:.3g}"),
        "agreement": round(answers.agreement, 2),
    }
