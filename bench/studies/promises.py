"""How often `milkweed compress --max-drop` keeps its promise, by random judging sets of recorded answers.

    python -m milkweed.bench.studies.promises BUNDLE PHOTOS --answers FILE.npz [--judging N] [--out FILE]

Models from the slowest to the fastest, bfloat16, int8 and merged tokens by our own kernels, answer all photographs,
which are named by label id; every second one calibrates, as in a search. The answers are kept in a file: judging again
needs no model. Then sets of photographs are drawn, and each chooses a model by the search's own rule, with
labels and without. A promise is broken where the model that was chosen loses more on all photographs than was promised.
Beside it stands the fastest model whose change of top-1, counted with labels, has its lower end within the promise.
"""

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...compress.data import read_images
from ...compress.quality import QualityEvaluator, log_probabilities
from ...compress.selection import MeasuredCandidate, keeping
from ...inference.device import CPU
from ...inference.forward import plan_lanes
from ...inference.program import program_forward
from ...jobs.dataset import folder_samples
from ...models import load_bundle
from ...models.accounting import macs
from ...models.architectures.token_blocks import apply_token_plan
from ...models.divergence import answers
from ...models.layers.token_plan import TokenMerging, TokenPlan
from ...models.programs.stored import stored_bfloat16, stored_int8
from ...models.progress import SILENT
from ..machine import about, save

Row = dict[str, Any]

SHARES = {(4, 2): (0.16, 0.22, 0.28, 0.34, 0.4), (3, 3): (0.28,), (4, 3): (0.22, 0.34), (3, 2): (0.28, 0.34, 0.4)}
"""Shares of the tokens that merge, by the first block and the distance to the next."""

LABELS, NO_LABELS = "with labels", "without labels"


def _counted(models: Sequence[MeasuredCandidate], drop: float) -> list[MeasuredCandidate]:
    return [model for model in models if model.quality.top1 is not None and model.quality.top1.low >= -drop]


RULES = (("expected", LABELS, keeping), ("expected", NO_LABELS, keeping), ("counted", LABELS, _counted))
"""Name, which measurements it needs, and the models that it keeps."""


def recorded(bundle: Path, photos: Path, file: Path) -> dict[str, Tensor]:
    """Return log-probabilities of each model for all photographs, `labels`, and `cost` in multiply-accumulates."""
    if not file.exists():
        model, config = load_bundle(bundle)
        images = read_images(folder_samples(photos, config, labelled=True), config, "the", SILENT)
        assert images.targets is not None
        size = int(config.preprocess["size"])
        rows = {"labels": images.targets, "dense": answers(model, images.batches)}
        cost = {}
        for name, (plan, int8) in _models().items():
            merged = apply_token_plan(load_bundle(bundle)[0], plan)
            work = file.with_name(f"{file.stem}.{name}".replace(" ", "_"))
            stored = stored_int8(merged, size, images.pixels[::2], work) if int8 else stored_bfloat16(merged)
            cost[name] = macs(merged, size).total
            lanes = replace(plan_lanes(CPU, cost[name]), most_threads=1)
            with closing(program_forward(stored.loaded, lanes, size, stored.activations)) as forward:
                rows[name], _ = log_probabilities(forward, images.batches)
            print(
                f"{name}: {100 * float(torch.eq(rows[name].argmax(-1), images.targets).float().mean()):.1f} %",
                flush=True,
            )
        rows["cost"] = torch.tensor(list(cost.values()))
        np.savez(file, **{name: row.numpy() for name, row in rows.items()})  # type: ignore[arg-type]
    with np.load(file) as stored:
        return {name: torch.from_numpy(stored[name]) for name in stored.files}


def _models() -> dict[str, tuple[TokenPlan, bool]]:
    """Token plans, and whether they are computed in int8, by the models' names."""
    last = TokenPlan(class_last=True)
    merged = [TokenMerging(start, every, share, 0.1) for (start, every), shares in SHARES.items() for share in shares]
    names = {f"{plan.start} {plan.every} {plan.share:g}": replace(last, merging=plan) for plan in merged}
    return {"bfloat16": (last, False), "int8": (last, True)} | {name: (plan, True) for name, plan in names.items()}


def judged(rows: dict[str, Tensor], judging: int, sets: int) -> Iterator[dict[str, list[MeasuredCandidate]]]:
    """Yield what a search would measure of all models by sets of so many photographs, with labels and without."""
    images = len(rows["labels"])
    names = [name for name in rows if name not in ("labels", "dense", "cost")]
    # In bfloat16 a product takes twice as long; of the order of int8 models operations decide, as in a search.
    ms = {name: float(cost) * (2 if name == "bfloat16" else 1) for name, cost in zip(names, rows["cost"], strict=True)}
    generator = torch.Generator().manual_seed(0)
    for _ in range(sets):
        drawn = torch.randperm(images, generator=generator)[:judging]
        dense = rows["dense"][drawn]
        dense = rows["dense"][drawn]
        judges = {LABELS: QualityEvaluator(dense, rows["labels"][drawn]), NO_LABELS: QualityEvaluator(dense)}
        yield {
            how: [MeasuredCandidate(name, judge(rows[name][drawn]), {1: ms[name]}, 0, "") for name in names]
            for how, judge in judges.items()
        }


def promises(rows: dict[str, Tensor], judging: int, sets: int, drops: Sequence[float]) -> list[Row]:
    """Return for each rule and drop how many searches keep nothing, and how many choose a model that loses more."""
    right = {name: (row.argmax(-1) == rows["labels"]).double() for name, row in rows.items() if row.dim() == 2}
    truth = {name: 100 * float((row - right["dense"]).mean()) for name, row in right.items()}
    chosen: dict[tuple[str, str, float], list[str | None]] = {}
    for measured in judged(rows, judging, sets):
        for rule, how, keep in RULES:
            for drop in drops:
                kept = min(keep(measured[how], drop), key=lambda model: model.ms[1], default=None)
                chosen.setdefault((rule, how, drop), []).append(None if kept is None else kept.name)
    return [
        {
            "rule": f"{rule}, {how}",
            "drop": drop,
            "nothing_percent": 100 * names.count(None) / sets,
            "broken_percent": 100 * sum(name is not None and truth[name] < -drop for name in names) / sets,
            "chosen_percent": {name: round(100 * names.count(name) / sets) for name in truth if name in names},
        }
        for (rule, how, drop), names in chosen.items()
    ]


def main() -> None:
    """Answer, judge, and print a row for each rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--answers", type=Path, required=True)
    parser.add_argument("--judging", type=int, default=250)
    parser.add_argument("--sets", type=int, default=600)
    parser.add_argument("--drops", type=float, nargs="+", default=[1.0, 2.0])
    parser.add_argument("--out", type=Path)
    args, load = parser.parse_args(), os.getloadavg()
    rows = recorded(args.bundle, args.photos, args.answers)
    judgements = promises(rows, args.judging, args.sets, args.drops)
    for row in judgements:
        print(
            f"{row['rule']}, drop {row['drop']:g}: nothing kept {row['nothing_percent']:.1f} %, "
            f"broken {row['broken_percent']:.1f} %, chosen {row['chosen_percent']}"
        )
    if args.out is not None:
        save(args.out, {**about("promises", load), "judging": args.judging, "sets": args.sets, "rows": judgements})


if __name__ == "__main__":
    main()
