"""Rows of what two-byte numbers and kernels do to a trained model's answers, on photographs, beside float64."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor, nn

from ...inference.device import usable_cores
from ...kernels.tuning.verify import relative_error
from ...loaders import CpuLoader
from ...loaders.preprocess.spec import PreprocessSpec
from ...models import load_bundle
from ...models.serving.fused.fuse import fuse
from ...models.serving.fused.tuning import Tuning
from ...models.serving.prepare import prepare_for_inference
from ..bodies import photos
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
    bench, encoded = bench_of(task, writer), photos(Path(task.photos), BATCH if task.dry else None)

    @torch.inference_mode()
    def measure(unit: str) -> None:
        for bundle in task.bundles:
            for row in bundle_rows(Path(bundle), encoded, bench):
                writer({**row, "unit": unit, "round": 1})

    return measure


def bundle_rows(bundle: Path, encoded: Sequence[bytes], bench: Bench) -> Iterator[Record]:
    """Make the rows of one bundle: fused, and in plain PyTorch, which shows what the number type alone does.

    A photograph that cannot be decoded is left out.
    """
    model, config = load_bundle(bundle)
    spec = PreprocessSpec.from_dict(config.preprocess)
    inputs = list(batches(spec, encoded, bench.device))
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


def batches(spec: PreprocessSpec, encoded: Sequence[bytes], device: torch.device) -> Iterator[Tensor]:
    """Decode and preprocess: yield normalised images (n, 3, S, S) on the device, float32."""
    with closing(CpuLoader(spec, num_threads=usable_cores())) as loader:
        for start in range(0, len(encoded), BATCH):
            pixels = torch.as_tensor(loader.load(encoded[start : start + BATCH]).pixels)
            if len(pixels):
                yield pixels.to(device)


def compared(found: Tensor, right: Tensor) -> dict[str, float]:
    """Compare logits (n, classes): the relative error of all, the worst of one image, the share of equal classes."""
    worst = ((found - right).norm(dim=1) / right.norm(dim=1)).max()
    same = (found.argmax(1) == right.argmax(1)).double().mean()
    return {
        "images": len(right),
        "logits_error": float(f"{relative_error(found, right):.3g}"),
        "worst_logits_error": float(f"{worst:.3g}"),
        "same_top1": round(float(same), 4),
    }
