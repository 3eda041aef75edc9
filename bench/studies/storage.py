"""What storing weights in fewer bits saves and costs: bytes on disk and in memory, accuracy, time of a forward.

    python -m milkweed.bench.studies.storage PHOTOS BUNDLE [BUNDLE ...] [--seconds 30]

Each bundle is converted as `milkweed convert` does, int8 tried on 64 photographs. All its versions answer the
photographs, named by label id, in float32, as served on a CPU. Then their serving forms take turns with one image and
with eight, on one thread, in float32 and in bfloat16: medians of wall time and of CPU time an image.
"""

import argparse
import json
import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...jobs.convert import ConvertJob, convert
from ...jobs.dataset import labelled_images
from ...loaders.dataset.evaluation import PreparedImages
from ...loaders.preprocess.spec import PreprocessSpec
from ...models import load_bundle, read_config, resident_bytes
from ...models.bundle.config import STORAGES
from ...models.compress.measured import Measuring
from ...models.divergence import answers
from ...models.progress import Progress
from ...models.report import Measured
from ...models.serving.prepare import prepare_for_inference
from ..machine import about, torch_threads
from ..turns import in_turns, medians

BATCH_SIZES = (1, 8)
DTYPES = ("float32", "bfloat16")


def converted(bundle: Path, photos: Path, work: Path) -> dict[str, Path]:
    """The bundle in every storage."""
    paths = {storage: work / bundle.name / storage for storage in STORAGES}
    for storage, path in paths.items():
        convert(ConvertJob(source=bundle, out=path, storage=storage, images=photos, limit=1), Progress())
    return paths


def served(path: Path, dtype: str) -> nn.Module:
    """The serving form on a CPU."""
    model, config = load_bundle(path)
    return prepare_for_inference(model, dtype=getattr(torch, dtype), int8_layers=config.int8_layers)


def accuracy(paths: Mapping[str, Path], photos: Path) -> dict[str, Measured]:
    """Each storage against float32 on all photographs, each of which is read once."""
    config = read_config(paths["float32"])
    samples = labelled_images(photos, config.labels).samples
    models = {storage: served(path, "float32") for storage, path in paths.items()}
    found: dict[str, list[torch.Tensor]] = {storage: [] for storage in paths}
    targets = []
    for images, classes in PreparedImages(samples, PreprocessSpec.from_dict(config.preprocess), 8, cache_bytes=0):
        assert classes is not None
        targets.append(classes)
        for storage, model in models.items():
            found[storage].append(answers(model, [images]))
    measuring = Measuring((), torch.cat(targets), torch.cat(found["float32"]))
    return {storage: measuring.of_answers(torch.cat(parts)) for storage, parts in found.items()}


@torch.inference_mode()
def times(paths: Mapping[str, Path], size: int, seconds: float) -> dict[str, dict[str, tuple[float, float]]]:
    """Wall and CPU milliseconds an image by storage, and by dtype and images of a forward."""
    table: dict[str, dict[str, tuple[float, float]]] = {storage: {} for storage in paths}
    for dtype in DTYPES:
        models = {storage: served(path, dtype) for storage, path in paths.items()}
        for images in BATCH_SIZES:
            x = torch.randn(images, 3, size, size, generator=torch.Generator().manual_seed(0))
            calls = {storage: partial(model, x.to(getattr(torch, dtype))) for storage, model in models.items()}
            spent = in_turns(calls, 7, seconds / (len(DTYPES) * len(BATCH_SIZES)))
            for storage, found in spent.items():
                table[storage][f"{dtype}, {images}"] = medians(found, images)
    return table


def rows(bundle: Path, photos: Path, work: Path, seconds: float) -> list[dict[str, Any]]:
    """A row for each storage; agreement and KL are with float32."""
    paths = converted(bundle, photos, work)
    found = accuracy(paths, photos)
    spent = times(paths, int(read_config(bundle).preprocess["size"]), seconds)
    return [
        {
            "storage": storage,
            "layers": dict(Counter(config.storage.values())),
            "bytes_on_disk": config.bytes_on_disk,
            "resident_bytes": {dtype: resident_bytes(served(paths[storage], dtype)) for dtype in DTYPES},
            "measured": asdict(found[storage]),
            "wall_ms_per_image": {name: wall for name, (wall, _) in spent[storage].items()},
            "cpu_ms_per_image": {name: cpu for name, (_, cpu) in spent[storage].items()},
        }
        for storage, config in ((storage, read_config(path)) for storage, path in paths.items())
    ]


def measure(photos: Path, bundles: Sequence[Path], work: Path, seconds: float) -> dict[str, Any]:
    """All rows of all bundles and what they belong to."""
    before, found = os.getloadavg(), []
    for bundle in bundles:
        config = read_config(bundle)
        table = rows(bundle, photos, work, seconds)
        head = {"arch": config.arch, "version": config.version, "structured_layers": len(config.structure)}
        found.append({**head, "rows": table})
        print(f"{config.arch}, {len(config.structure)} structured layers")
        for row in table:
            top1, agree, kl = (row["measured"][name] for name in ("top1", "agreement", "kl"))
            resident = ", ".join(f"{dtype} {count / 1e6:.2f}" for dtype, count in row["resident_bytes"].items())
            print(
                f"  {row['storage']:<9} {row['bytes_on_disk'] / 1e6:6.2f} MB on disk, resident MB {resident};", end=" "
            )
            print(f"top-1 {top1:.1f} %, agree {agree:.1f} %, KL {kl:.5f}; CPU ms {row['cpu_ms_per_image']}", flush=True)
    return {**about("storage", before), "bundles": found}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("bundles", type=Path, nargs="+", metavar="bundle")
    parser.add_argument("--seconds", type=float, default=30, help="of the forwards taking turns, for each bundle")
    parser.add_argument("--out", type=Path, default=Path("bench/results/storage.json"))
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)  # before what takes minutes
    with tempfile.TemporaryDirectory() as work, torch_threads(1):
        document = measure(args.photos, args.bundles, Path(work), args.seconds)
    args.out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
