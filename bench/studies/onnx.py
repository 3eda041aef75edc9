"""ONNX Runtime against torch on a CPU: `python -m milkweed.bench.studies.onnx BUNDLE ... --photos DIR`.

Forwards in float32: a dense model and what its MLPs are as Monarch of four blocks, by torch as it is served and by ONNX
Runtime, in turns in one run; medians. Each bundle and its Monarch one are also served by both engines over HTTP,
photograph by photograph in turns: the classes and the servers' CPU time are compared.
"""

import argparse
import copy
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import torch
from torch import Tensor, nn

from ...models import create_model, default_preprocess, load_bundle, read_config, select_linears
from ...models.compress import CompressRequest, compress_model
from ...models.inference import prepare_for_inference
from ...models.onnx.export import LIMITS, write_verified
from ...models.onnx.session import OnnxSession, runtime_version
from ...models.provenance import library_versions
from ...models.structure import monarch_structure
from ...models.traced import traced
from ..bodies import photos
from ..http_overhead import running_server
from ..process import machine
from ..serving.processes import usage

Sides = dict[str, Callable[[Tensor], Tensor]]
"""What computes logits, by engine and form: `torch dense`."""

OUT = Path("bench/results/onnx.json")
ARCHS = ("vit_small_patch16_224", "vitae_basic_tiny")

ENGINES = ("torch", "onnxruntime")
WARM_UP_ROUNDS = 2


def main() -> None:
    """Print a row a comparison, write all as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", type=Path, nargs="*", metavar="BUNDLE", help="dense ones")
    parser.add_argument("--archs", nargs="*", default=ARCHS, help="of random weights, forwards alone")
    parser.add_argument("--images", type=int, nargs="+", default=[1, 8], help="of one forward")
    parser.add_argument("--rounds", type=int, default=9, help="each side once a round")
    parser.add_argument("--photos", type=Path, required=True, help="folder of JPEGs")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)  # before what takes minutes
    torch.set_num_threads(1)
    before = os.getloadavg()
    jpegs = photos(options.photos)
    rows, served = [], []
    with tempfile.TemporaryDirectory() as folder:
        pairs = {bundle: _monarch(bundle, Path(folder)) for bundle in options.bundles}
        for name, forms, size in [*map(_loaded, pairs.items()), *map(_random, options.archs)]:
            sides = _sides(forms, size, options.images)
            rows += [forwards(name, sides[images], images, size, options.rounds) for images in options.images]
        for bundle in itertools.chain.from_iterable(pairs.items()):
            served.append(photographs(bundle, jpegs))
    document = {
        "benchmark": "onnx",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "load_average": {"before": before, "after": os.getloadavg()},
        "versions": {**library_versions(), "onnxruntime": runtime_version()},
        "settings": {"threads": 1, "dtype": "float32", "rounds": options.rounds},
        "rows": rows,
        "photographs": served,
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(f"wrote {options.out}")


def forwards(name: str, sides: Sides, images: int, size: int, rounds: int) -> dict[str, Any]:
    """CPU and wall milliseconds of a forward, medians, by side; `cpu_ratio` to torch's dense one, above 1 is faster.

    Raises:
        RuntimeError: ONNX Runtime computes something else than torch.
    """
    x = torch.randn(images, 3, size, size, generator=torch.Generator().manual_seed(0))
    spent = _in_turns(sides, x, rounds)
    cpu = {side: median(times["cpu"]) for side, times in spent.items()}
    ratios = {side: round(cpu["torch dense"] / ms, 2) for side, ms in cpu.items()}
    figures = ", ".join(f"{side} {ms:.2f} ms ({ratios[side]} x)" for side, ms in cpu.items())
    print(f"{name}, {images} images, CPU: {figures}", flush=True)
    return {
        "model": name,
        "images": images,
        "rounds": rounds,
        "cpu_ms": {side: round(ms, 3) for side, ms in cpu.items()},
        "wall_ms": {side: round(median(times["wall"]), 3) for side, times in spent.items()},
        "cpu_ratio": ratios,
    }


def photographs(bundle: Path, jpegs: Sequence[bytes]) -> dict[str, Any]:
    """A bundle served by each engine: photographs that get another class, CPU milliseconds of the server for one.

    Raises:
        httpx.HTTPStatusError: a photograph was refused.
    """
    classes: dict[str, list[int]] = {engine: [] for engine in ENGINES}
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(timeout=60))
        servers = {
            engine: stack.enter_context(running_server(bundle, {"engine": engine, "device": "cpu"}))
            for engine in ENGINES
        }
        before = {engine: usage(process.pid, proportional=False) for engine, (process, _) in servers.items()}
        for jpeg in jpegs:
            for engine, (_, url) in servers.items():
                answer = client.post(f"{url}/classify?top_k=1", content=jpeg, headers={"content-type": "image/jpeg"})
                classes[engine].append(answer.raise_for_status().json()["results"][0]["predictions"][0]["index"])
        after = {engine: usage(process.pid, proportional=False) for engine, (process, _) in servers.items()}
    row = {
        "bundle": bundle.name,
        "version": read_config(bundle).version,
        "photographs": len(jpegs),
        "classes": len(set(classes["torch"])),
        "other_top1": sum(one != other for one, other in zip(*classes.values(), strict=True)),
        "server_cpu_ms": {
            engine: round((after[engine].cpu_seconds - before[engine].cpu_seconds) / len(jpegs) * 1e3, 2)
            for engine in ENGINES
        },
    }
    print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return row


def _in_turns(sides: Sides, x: Tensor, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Milliseconds of each side, each first in turn, the first rounds left out."""
    spent: dict[str, dict[str, list[float]]] = {side: {"cpu": [], "wall": []} for side in sides}
    with torch.inference_mode():
        for turn in range(rounds + WARM_UP_ROUNDS):
            found = {}
            for side in [*sides][turn % len(sides) :] + [*sides][: turn % len(sides)]:
                wall, cpu = time.perf_counter(), time.process_time()
                found[side] = sides[side](x)
                took = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
                for clock, seconds in took.items():
                    if turn >= WARM_UP_ROUNDS:
                        spent[side][clock].append(seconds * 1e3)
            _check_equal(found)
    return spent


def _check_equal(found: Mapping[str, Tensor]) -> None:
    for side, logits in found.items():
        expected = found[side.replace("onnxruntime", "torch")]
        if float((logits - expected).abs().max() / expected.abs().max().clamp(min=1)) > LIMITS["float32"]:
            raise RuntimeError(f"{side} computes something else than torch")


def _sides(forms: Mapping[str, nn.Module], size: int, batch_sizes: Sequence[int]) -> dict[int, Sides]:
    """Each form by each engine, for batches of each size."""
    sides: dict[int, Sides] = {images: {} for images in batch_sizes}
    for form, model in forms.items():
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.onnx"
            write_verified(copy.deepcopy(model), file, size)
            served = prepare_for_inference(model)
            for images in batch_sizes:
                sides[images][f"torch {form}"] = traced(served, (images, 3, size, size))
                sides[images][f"onnxruntime {form}"] = OnnxSession(file, batch=images)
    return sides


def _monarch(bundle: Path, folder: Path) -> Path:
    """A bundle's nearest Monarch one, beside no other of its name."""
    out = folder / f"{bundle.name}-monarch"
    compress_model(bundle, out, CompressRequest())
    return out


def _loaded(pair: tuple[Path, Path]) -> tuple[str, dict[str, nn.Module], int]:
    """A dense bundle and its Monarch one: name, model by form, px."""
    (dense, config), (monarch, _) = map(load_bundle, pair)
    name = f"{pair[0].name} ({config.arch} {config.version})"
    return name, {"dense": dense, "monarch": monarch}, int(config.preprocess["size"])


def _random(arch: str) -> tuple[str, dict[str, nn.Module], int]:
    """An architecture with random weights, dense and with Monarch MLPs: name, model by form, px."""
    torch.manual_seed(0)
    dense = create_model(arch)
    monarch = create_model(arch, structure=monarch_structure(dense, select_linears(dense, ["mlp"])))
    forms = {"dense": dense.requires_grad_(False), "monarch": monarch.requires_grad_(False)}
    return arch, forms, int(default_preprocess(arch)["size"])


if __name__ == "__main__":
    main()
