"""What storing weights in fewer bits saves and costs: bytes on disk and in memory, accuracy, time of a forward.

    python -m milkweed.bench.studies.storage PHOTOS BUNDLE [BUNDLE ...] [--seconds 30]

Each bundle is converted as `milkweed convert` does, int8 tried on 64 photographs. All its versions answer the
photographs, named by label id, in float32, as served on a CPU. Then their serving forms take turns with one image and
with eight, on one thread, in float32 and in bfloat16: medians of wall time and of CPU time an image. A small model's
memory is lost in that of its process, so the processes of a ViT-B of random weights are measured, too.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from ...loaders.evaluation import PreparedImages
from ...loaders.spec import PreprocessSpec
from ...models import (
    BundleConfig,
    create_model,
    default_preprocess,
    load_bundle,
    read_config,
    resident_bytes,
    save_bundle,
)
from ...models.compress.measured import Measuring
from ...models.divergence import answers
from ...models.inference import prepare_for_inference
from ...models.labels import default_labels
from ...models.provenance import library_versions
from ...models.report import Measured
from ...models.storage import STORAGES, storable_weights
from ...server.compress_request import CompressHooks
from ...server.convert import ConvertRun, convert
from ...server.dataset import find_samples
from ..process import machine

BATCH_SIZES = (1, 8)
DTYPES = ("float32", "bfloat16")
LEAST_ROUNDS, WARM_UP_ROUNDS = 7, 2

OPENED = """
import sys, pathlib, torch
from milkweed.server.served import open_model
from milkweed.server.settings import Settings
model = open_model("model", pathlib.Path(sys.argv[1]), Settings(device="cpu", lanes=1))
for _ in range(3):
    model.pipeline.lanes.run(torch.zeros(8, 3, model.size, model.size))
status = pathlib.Path("/proc/self/status").read_text()
print(1024 * int(status.split("RssAnon:")[1].split()[0]))
model.pipeline.close()
"""
"""Prints a process's own memory, without files that it shares with others, once it has opened a model and run it."""

Times = dict[str, dict[str, tuple[float, float]]]
"""Wall and CPU milliseconds an image by storage, and by dtype and images of a forward."""


@dataclass(frozen=True)
class Row:
    """A bundle in one storage; agreement and KL are with float32."""

    storage: str
    layers: Mapping[str, int]
    bytes_on_disk: int
    resident_bytes: Mapping[str, int]
    measured: Measured
    wall_ms_per_image: Mapping[str, float]
    cpu_ms_per_image: Mapping[str, float]


def converted(bundle: Path, photos: Path, work: Path) -> dict[str, Path]:
    """The bundle in every storage."""
    paths = {storage: work / bundle.name / storage for storage in STORAGES}
    for storage, path in paths.items():
        convert(ConvertRun(source=bundle, out=path, storage=storage, images=photos, limit=1), CompressHooks())
    return paths


def served(path: Path, dtype: str) -> nn.Module:
    """The serving form on a CPU."""
    model, config = load_bundle(path)
    return prepare_for_inference(model, dtype=getattr(torch, dtype), int8_layers=config.int8_layers)


def process_bytes(work: Path) -> dict[str, int]:
    """Memory of processes that serve a ViT-B of random weights, by storage, on Linux."""
    arch, found = "vit_base_patch16_224", {}
    model = create_model(arch)
    config = BundleConfig(arch=arch, preprocess=default_preprocess(arch), labels=default_labels(1000))
    for storage in ("float32", "int8"):
        layers = {} if storage == "float32" else dict.fromkeys(storable_weights(model), storage)
        save_bundle(work / arch, model, config, storage=layers, overwrite=True)
        command = (sys.executable, "-c", OPENED, str(work / arch))
        found[storage] = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        print(f"a process that serves {arch} from {storage}: {found[storage] / 1e6:.0f} MB", flush=True)
    return found


def accuracy(paths: Mapping[str, Path], photos: Path) -> dict[str, Measured]:
    """Each storage against float32 on all photographs, each of which is read once."""
    config = read_config(paths["float32"])
    samples = [(sample.path, sample.target) for sample in find_samples(photos, config.labels).samples]
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


def times(paths: Mapping[str, Path], size: int, seconds: float) -> Times:
    """Medians of the forwards, which take turns."""
    table: Times = {storage: {} for storage in paths}
    for dtype in DTYPES:
        models = {storage: served(path, dtype) for storage, path in paths.items()}
        for images in BATCH_SIZES:
            x = torch.randn(images, 3, size, size, generator=torch.Generator().manual_seed(0))
            found = _in_turns(models, x.to(getattr(torch, dtype)), seconds / (len(DTYPES) * len(BATCH_SIZES)))
            for storage, spent in found.items():
                table[storage][f"{dtype}, {images}"] = spent
    return table


@torch.inference_mode()
def _in_turns(models: Mapping[str, nn.Module], x: torch.Tensor, seconds: float) -> dict[str, tuple[float, float]]:
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
    names, rounds, end = list(models), 0, time.perf_counter() + seconds
    while rounds < WARM_UP_ROUNDS + LEAST_ROUNDS or time.perf_counter() < end:
        for name in names[rounds % len(names) :] + names[: rounds % len(names)]:
            wall, cpu = time.perf_counter(), time.process_time()
            models[name](x)
            spent[name].append((time.perf_counter() - wall, time.process_time() - cpu))
        rounds += 1
    image = 1e3 / len(x)
    medians = {name: zip(*rows[WARM_UP_ROUNDS:], strict=True) for name, rows in spent.items()}
    return {
        name: (round(image * median(wall), 2), round(image * median(cpu), 2)) for name, (wall, cpu) in medians.items()
    }


def rows(bundle: Path, photos: Path, work: Path, seconds: float) -> list[Row]:
    """The bundle in every storage."""
    paths = converted(bundle, photos, work)
    configs = {storage: read_config(path) for storage, path in paths.items()}
    found = accuracy(paths, photos)
    spent = times(paths, int(configs["float32"].preprocess["size"]), seconds)
    return [
        Row(
            storage=storage,
            layers=dict(Counter(config.storage.values())),
            bytes_on_disk=config.bytes_on_disk,
            resident_bytes={dtype: resident_bytes(served(paths[storage], dtype)) for dtype in DTYPES},
            measured=found[storage],
            wall_ms_per_image={name: wall for name, (wall, _) in spent[storage].items()},
            cpu_ms_per_image={name: cpu for name, (_, cpu) in spent[storage].items()},
        )
        for storage, config in configs.items()
    ]


def measure(photos: Path, bundles: list[Path], work: Path, seconds: float) -> dict[str, Any]:
    """All rows of all bundles and what they belong to."""
    before = os.getloadavg()
    found = []
    for bundle in bundles:
        config = read_config(bundle)
        table = [asdict(row) for row in rows(bundle, photos, work, seconds)]
        found.append(
            {"arch": config.arch, "version": config.version, "structured_layers": len(config.structure), "rows": table}
        )
        print(_table(found[-1]), flush=True)
    return {
        "benchmark": "storage",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "load_average": {"before": before, "after": os.getloadavg()},
        "versions": library_versions(),
        "bundles": found,
        "vit_base_process_bytes": process_bytes(work),
    }


def _table(found: Mapping[str, Any]) -> str:
    lines = [f"{found['arch']}, {found['structured_layers']} structured layers"]
    for row in found["rows"]:
        measured = row["measured"]
        resident = ", ".join(f"{dtype} {count / 1e6:.2f}" for dtype, count in row["resident_bytes"].items())
        lines.append(
            f"  {row['storage']:<9} {row['bytes_on_disk'] / 1e6:6.2f} MB on disk, resident MB {resident}; "
            f"top-1 {measured['top1']:.1f} % of {measured['images']}, "
            f"agree {measured['agreement']:.1f} %, KL {measured['kl']:.5f}; CPU ms an image {row['cpu_ms_per_image']}"
        )
    return "\n".join(lines)


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("bundles", type=Path, nargs="+", metavar="bundle")
    parser.add_argument("--seconds", type=float, default=30, help="of the forwards taking turns, for each bundle")
    parser.add_argument("--out", type=Path, default=Path("bench/results/storage.json"))
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)  # before what takes minutes
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work:
        document = measure(args.photos, args.bundles, Path(work), args.seconds)
    args.out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
