"""Makes the demo bundle of two finished runs of `demo_model`, and measures both as the server would answer.

    python -m milkweed.bench.demo_bundle monarch.pt dense.pt DATA models/demo

The bundle holds the Monarch model; the dense twin's accuracy, size and recipe go on record beside its own.
"""

import argparse
import hashlib
import tempfile
from pathlib import Path
from typing import Any

import torch

from ..loaders.guard import DEFAULT_LIMITS
from ..models.bundle import load_bundle, save_bundle
from ..models.config import BundleConfig
from ..models.labels import Label
from ..models.provenance import add_step
from ..models.structure import structure_of
from ..server.dataset import find_samples
from ..server.evaluate import evaluate
from ..server.pipeline import build_pipeline
from .demo_model import ARCH_ARGS, MEAN, STD, build


def bundle_of_run(run: Path, out: Path, metrics: dict[str, Any] | None = None) -> BundleConfig:
    """Write the bundle of one run; an existing one is replaced.

    Args:
        run: what `demo_model train` wrote: weights and the record of how they came about.
        metrics: to put on record.
    """
    saved = torch.load(run, weights_only=True)
    record = saved["record"]
    model = build(record["recipe"]["structure"])
    model.load_state_dict(saved["state_dict"])
    source = {"file": run.name, "sha256": hashlib.sha256(run.read_bytes()).hexdigest(), "data": "CIFAR-10, train split"}
    command = f"python -m milkweed.bench.demo_model train DATA {run.name} --structure {record['recipe']['structure']}"
    config = BundleConfig(
        arch="vitae_basic",
        arch_args={"num_classes": len(record["classes"]), **ARCH_ARGS},
        structure=structure_of(model),
        preprocess={"size": 32, "crop_pct": 1.0, "interpolation": "bicubic", "mean": list(MEAN), "std": list(STD)},
        provenance=add_step({"source": source}, command, record["recipe"], record["seconds"]),
        metrics=metrics or {},
    )
    labels = [Label(id=name, label=name) for name in record["classes"]]
    return save_bundle(out, model.eval(), config, labels, overwrite=True)


def measure(bundle: Path, data: Path) -> dict[str, Any]:
    """Top-1 over a folder-per-class tree through the pipeline that answers requests, and the model's size."""
    model, config = load_bundle(bundle)
    parameters = sum(p.numel() for p in model.parameters())
    pipeline = build_pipeline(model, config)
    try:
        found = find_samples(data, config.labels)
        result = evaluate(pipeline, found.samples, max_image_bytes=DEFAULT_LIMITS.max_bytes)
    finally:
        pipeline.close()
    return {
        "top1": result.top1,
        "images": result.images,
        "parameters": parameters,
        "bytes_on_disk": config.bytes_on_disk,
    }


def make(monarch: Path, dense: Path, data: Path, out: Path) -> dict[str, Any]:
    """Write the demo bundle to `out` with both models' figures on record; returns those."""
    with tempfile.TemporaryDirectory() as folder:
        twins = {}
        for name, run in (("monarch", monarch), ("dense_twin", dense)):
            bundle = Path(folder) / name
            bundle_of_run(run, bundle)
            twins[name] = measure(bundle, data / "test")
    figures = {"evaluations": {"cifar10-test": twins["monarch"]}, "dense_twin": {"cifar10-test": twins["dense_twin"]}}
    bundle_of_run(monarch, out, figures)
    return figures


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("monarch", "dense", "data", "out"):
        parser.add_argument(name, type=Path)
    args = parser.parse_args()
    for name, figures in make(args.monarch, args.dense, args.data, args.out).items():
        print(name, figures)


if __name__ == "__main__":
    main()
