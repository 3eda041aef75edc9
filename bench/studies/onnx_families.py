"""ONNX exports of every family against torch: `python -m milkweed.bench.studies.onnx_families --photos DIR [ARCH ...]`.

The smallest model of each family, all its replaceable layers but the classifier Monarch of four blocks, is exported and
computed by ONNX Runtime: random and real images, batches of 1, 3 and 8. The errors are differences of logits, divided
by the largest logit where that is above 1. Only they are measured, no time: other work changes nothing.
"""

import argparse
import copy
import io
import json
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from ...models import create_model, default_preprocess
from ...models.accounting import parameter_count
from ...models.catalogue import linears_outside
from ...models.errors import ExportError
from ...models.onnx.export import LIMITS, write_verified
from ...models.onnx.session import OnnxSession, runtime_version
from ...models.provenance import library_versions
from ...models.registry import CUSTOM_VITAE, classifier_layers, own_architectures
from ...models.structure import monarch_structure, replace_linears
from ...models.timm_door import recorded_timm_models
from ...models.weightless import weightless
from ..bodies import photos

OUT = Path("bench/results/onnx_families.json")
PUBLISHED = ("vision_transformer", "deit", "mlp_mixer")
"""timm's modules of which there are published Monarch models."""

BATCHES, NBLOCKS = (1, 3, 8), 4
MOST_MACS = 30e9
"""Of one image: a family without a smaller model is passed over, it would take minutes."""


def main() -> None:
    """Print a row a model, write all as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archs", nargs="*", metavar="ARCH", help="instead of the smallest of each family")
    parser.add_argument("--photos", type=Path, required=True, help="folder with eight JPEGs or more")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)  # before what takes minutes
    torch.set_num_threads(1)
    plan = [(arch, dtype) for arch in options.archs for dtype in LIMITS] or list(smallest())
    rows = []
    for arch, dtype in plan:
        rows.append(compared(arch, dtype, options.photos))
        print(" ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    document = {
        "benchmark": "onnx_families",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {**library_versions(), "onnxruntime": runtime_version()},
        "rows": rows,
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(f"wrote {options.out}")


def smallest() -> Iterator[tuple[str, str]]:
    """Of each class of ours the model with the fewest parameters, of each module of timm's that with the fewest MACs.

    All number types for ours, ViT, DeiT and Mixer, float32 for the others.
    """
    own: dict[str, tuple[int, str]] = {}
    for arch in set(own_architectures()) - {CUSTOM_VITAE}:
        with weightless():
            model = create_model(arch)
        kind = type(model).__name__
        own[kind] = min(own.get(kind, (1 << 62, "")), (parameter_count(model).total, arch))
    timm: dict[str, tuple[int, str]] = {}
    for arch, record in recorded_timm_models().items():
        if record.macs <= MOST_MACS:
            timm[record.family] = min(timm.get(record.family, (1 << 62, "")), (record.macs, arch))
    for family, (_, arch) in [*sorted(own.items()), *sorted(timm.items())]:
        yield from ((arch, dtype) for dtype in (LIMITS if family in own or family in PUBLISHED else ["float32"]))


def compared(arch: str, dtype: str, folder: Path) -> dict[str, Any]:
    """The largest error of random and of real images, or why there is none."""
    size = int(default_preprocess(arch)["size"])
    model, layers = _model(arch)
    inputs = {"random": torch.randn(max(BATCHES), 3, size, size), "real": _real(folder, size)}
    row: dict[str, Any] = {"arch": arch, "image_px": size, "monarch_layers": layers, "dtype": dtype}
    with tempfile.TemporaryDirectory() as work, torch.inference_mode():
        try:
            file = Path(work) / "model.onnx"
            write_verified(copy.deepcopy(model), file, size, dtype)
        except ExportError as error:
            return {**row, "refused": str(error)}
        session = OnnxSession(file)
        return {**row, **{name: _largest_error(model, session, images) for name, images in inputs.items()}}


def _model(arch: str) -> tuple[nn.Module, int]:
    """Random weights, none of them left at zero: what a head of zeros says is the same for all images."""
    torch.manual_seed(0)
    model = create_model(arch)
    linears = linears_outside(model, classifier_layers(arch))
    names = [name for name, linear in linears.items() if min(linear.weight.shape) >= NBLOCKS]
    replace_linears(model, monarch_structure(model, names, nblocks=NBLOCKS))
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.02)
    return model.eval().requires_grad_(False), len(names)


def _largest_error(model: nn.Module, session: OnnxSession, images: Tensor) -> float:
    errors = []
    for count in BATCHES:
        expected = model(images[:count])
        found = session(images[:count])
        errors.append(float((found - expected).abs().max() / expected.abs().max().clamp(min=1)))
    if float(expected.std(0).max()) < 1e-3:
        raise RuntimeError("the model says the same of all images: nothing is compared")
    return float(f"{max(errors):.3g}")


def _real(folder: Path, size: int) -> Tensor:
    bodies = photos(folder, max(BATCHES))
    found = [np.asarray(Image.open(io.BytesIO(body)).convert("RGB").resize((size, size))) for body in bodies]
    return torch.from_numpy(np.stack(found)).permute(0, 3, 1, 2).float() / 64 - 2


if __name__ == "__main__":
    main()
