"""Makes the demo bundle of a finished CIFAR-10 experiment: its most accurate Monarch model, its siblings on record.

    python -m milkweed.bench.demo_bundle WORK bench/results/cifar10.json models/demo

A demo that is more accurate on record is not replaced.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..models.bundle.bundle import load_bundle, save_bundle
from ..models.bundle.config import BundleConfig
from ..models.bundle.reading import CONFIG, read_config

CANDIDATES = ("monarch", "d2s_recovered")
"""Models of the experiment whose MLPs are Monarch and whose accuracy is worth showing."""

DATA_NAME = "cifar10-test"
_FIGURES = ("top1", "images", "parameters", "bytes_on_disk")


def make(work: Path, document: Mapping[str, Any], out: Path) -> BundleConfig:
    """Write the demo bundle to `out`; an existing one is replaced if it is not more accurate.

    Args:
        work: the experiment's folder.
        document: what `milkweed.bench.studies.cifar10` wrote.

    Raises:
        ValueError: no candidate, a bundle that is not the one that was measured, or a better demo that is there.
        BundleError: a bundle that cannot be read or written.
    """
    rows = [row for row in document["rows"] if row["name"] in CANDIDATES]
    if not rows:
        raise ValueError(f"the experiment has none of {', '.join(CANDIDATES)}")
    best = max(rows, key=lambda row: float(row["top1"]))
    there = _recorded_top1(out)
    if there is not None and there > best["top1"]:
        raise ValueError(f"{out} has {there:.2f} % on record, the best of the experiment {best['top1']:.2f} %: kept")
    bundle = work / f"seed{best['seed']}" / best["name"]
    model, config = load_bundle(bundle)
    if config.version != best["version"]:
        raise ValueError(f"{bundle} is version {config.version}, {best['version']} was measured")
    siblings = {row["name"]: _figures(row) for row in document["rows"] if row["seed"] == best["seed"]}
    metrics = {**config.metrics, "evaluations": {DATA_NAME: _figures(best)}, "siblings": {DATA_NAME: siblings}}
    return save_bundle(out, model, replace(config, metrics=metrics), overwrite=True)


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("work", "results", "out"):
        parser.add_argument(name, type=Path)
    args = parser.parse_args()
    try:
        config = make(args.work, json.loads(args.results.read_text()), args.out)
    except ValueError as error:
        sys.exit(f"demo_bundle: {error}")
    print(args.out, config.version, config.metrics["evaluations"])


def _figures(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in _FIGURES}


def _recorded_top1(out: Path) -> float | None:
    """The accuracy on record of the demo that is there, if one is."""
    if not (out / CONFIG).is_file():
        return None
    found = read_config(out).metrics.get("evaluations", {}).get(DATA_NAME, {}).get("top1")
    return None if found is None else float(found)


if __name__ == "__main__":
    main()
