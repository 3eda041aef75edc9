"""What the recorded forward saves on a CPU: `python -m milkweed.bench.studies.lanes [BUNDLE ...]`.

Batches that fill all lanes, by the model's Python and by its record in turns; the answers must be equal to the bit. And
forwards of 1, 4 and 8 images on one thread, in turns: what `MICRO_BATCHES` of `server/lanes.py` is chosen by.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...models import load_bundle, macs
from ...models.inference import prepare_for_inference
from ...server.lanes import LanePlan, Lanes, plan_lanes
from ..process import machine
from ..serving.bundles import tiny_bundle

CPU = torch.device("cpu")
WAYS = ("Python", "recorded")
FORWARDS = (1, 4, 8)


def main() -> None:
    """Print a row a model, write all as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", type=Path, nargs="*", help="folders, beside a tiny ViT of random weights")
    parser.add_argument("--rounds", type=int, default=30, help="of one batch each")
    parser.add_argument("--out", type=Path, default=Path("bench/results/lanes.json"))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)  # before what takes minutes
    with tempfile.TemporaryDirectory() as folder:
        bundles = {each.name: each for each in (tiny_bundle(Path(folder) / "tiny"), *options.bundles)}
        rows = [measured(name, bundle, options.rounds) for name, bundle in bundles.items()]
    options.out.write_text(json.dumps({"benchmark": "lanes", "machine": machine(), "rows": rows}, indent=1) + "\n")
    print(f"wrote {options.out}")


def measured(name: str, bundle: Path, rounds: int) -> dict[str, Any]:
    """Medians, ms an image: wall time of a batch and CPU of the lanes.

    Raises:
        RuntimeError: the forward cannot be recorded, or an answer differs.
    """
    model, config = load_bundle(bundle)
    size = int(config.preprocess["size"])
    plan = plan_lanes(CPU, macs(model, size).total)
    ways = {each: Lanes(prepare_for_inference(model), plan, device=CPU, dtype=torch.float32) for each in WAYS}
    reason = ways["recorded"].trace(size).reason
    if reason is not None:
        raise RuntimeError(f"{name}: {reason}")
    images = torch.randn(max(8, plan.lanes * plan.micro_batch), 3, size, size)
    expected = ways["Python"].run(images).probabilities
    spent: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for turn in range(rounds + 3):
        for way, lanes in ways.items():
            started = time.perf_counter()
            forward = lanes.run(images)
            took = time.perf_counter() - started
            if not torch.equal(forward.probabilities, expected):
                raise RuntimeError(f"{name}: the {way} forward gives other bits")
            if turn >= 3:  # the first ones warm up
                spent[way].append((took, forward.cpu_seconds))
    row: dict[str, Any] = {"model": name, "lanes": str(plan), "images": len(images), "rounds": rounds}
    for way, times in spent.items():
        wall, cpu = (statistics.median(each) / len(images) * 1e3 for each in zip(*times, strict=True))
        row[way] = {"wall_ms": round(wall, 3), "cpu_ms": round(cpu, 3)}
    row["one_thread_ms"] = one_thread(model, size, rounds)
    row["ratio"] = round(row["Python"]["wall_ms"] / row["recorded"]["wall_ms"], 2)
    walls = ", ".join(f"{way} {row[way]['wall_ms']} ms ({row[way]['cpu_ms']} of CPU)" for way in ways)
    alone = ", ".join(f"{count}: {took} ms" for count, took in row["one_thread_ms"].items())
    print(f"{name}, {plan}: an image {walls}: {row['ratio']} x; forwards of one thread {alone}", flush=True)
    return row


def one_thread(model: nn.Module, size: int, rounds: int) -> dict[int, float]:
    """Median ms of a recorded forward by its images."""
    form = prepare_for_inference(model)
    lanes = {n: Lanes(form, LanePlan(n, 1, 1), device=CPU, dtype=torch.float32) for n in FORWARDS}
    spent: dict[int, list[float]] = {n: [] for n in lanes}
    for each in lanes.values():
        each.trace(size)
    for turn in range(rounds + 3):
        for n, each in lanes.items():
            images = torch.randn(n, 3, size, size)
            started = time.perf_counter()
            each.run(images)
            if turn >= 3:
                spent[n].append(time.perf_counter() - started)
    for each in lanes.values():
        each.close()
    return {n: round(statistics.median(times) * 1e3, 2) for n, times in spent.items()}


if __name__ == "__main__":
    main()
