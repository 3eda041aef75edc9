"""Many replicas under an autoscaler, simulated.

python -m milkweed.bench.autoscale                                   # DeiT-Tiny on two cores, as measured
python -m milkweed.bench.autoscale --server few.json many.json --max-batch 64    # of `milkweed bench server`
python -m milkweed.bench.autoscale --sections targets                # what to write into the ScaledObject; at once
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from . import manifest, sections
from .curve import Curve, example, fitted
from .plot import plot
from .replicas import BALANCES
from .simulate import Setup
from .traffic import DAY_SECONDS

SECTIONS = ("targets", "loads", "few", "signals", "second", "starts", "rules", "day")
TRIAL_REPLICAS = 400


def main(arguments: list[str] | None = None) -> int:
    """Command line; see the module's docstring. 2 where the curve or the manifests cannot be read."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if unknown := set(options.sections) - set(SECTIONS):
        parser.error(f"no section {', '.join(sorted(unknown))}: there are {', '.join(SECTIONS)}")
    try:
        curve = _curve(options)
        setup = _setup(options, curve)
        document = _document(options, setup)
    except (OSError, ValueError, ImportError) as error:
        print(f"autoscale: {error}", file=sys.stderr)
        return 2
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(document) + "\n")
        print(f"wrote {options.out}")
        if "day" in document:
            picture = options.out.with_suffix(".png")
            picture.write_bytes(plot(document))
            print(f"wrote {picture}")
    return 0


def _document(options: argparse.Namespace, setup: Setup) -> dict[str, Any]:
    document: dict[str, Any] = {
        "benchmark": "autoscale",
        "version": version("milkweed"),
        "curve": str(setup.curve),
        "capacity": setup.curve.capacity,
        "replicas": options.replicas,
        "deployed": {metric.name: metric.target for metric in setup.scaling.metrics},
        "load": options.load,
        "start_seconds": options.start,
        "deadline_seconds": setup.deadline_seconds,
        "balance": setup.balance,
        "seed": setup.seed,
    }
    print(setup.curve)
    small = setup.but(scaling=setup.scaling.between(2, min(TRIAL_REPLICAS, options.replicas)))
    made: dict[str, Callable[[], Iterator[sections.Row]]] = {
        "targets": lambda: _targets(setup.curve),
        "loads": lambda: sections.loads(setup),
        "few": lambda: sections.few(setup, options.load),
        "signals": lambda: sections.signals(small, manifest.plain_hpa()),
        "second": lambda: sections.second(small, options.load),
        "starts": lambda: sections.starts(small),
        "rules": lambda: sections.rules(small),
    }
    for name in options.sections:
        print(f"\n{name}", flush=True)
        began = time.perf_counter()
        if name in made:
            document[name] = sections.printed(made[name](), lambda line: print(line, flush=True))
        else:
            (document["day"],), run = _day(options, setup)
            document["series"] = sections.by_minute(run)
        print(f"{time.perf_counter() - began:.0f} s", flush=True)
    return document


def _targets(curve: Curve) -> Iterator[sections.Row]:
    """What to write into the ScaledObject, by the share of the capacity to aim at."""
    for load in sections.LOADS:
        in_flight, busy = curve.steady(load)
        yield {
            "load": load,
            "images_per_second": round(load * curve.capacity, 2),
            "in_flight": round(in_flight, 2),
            "busy": round(busy, 3),
            "full_batch_seconds": round(curve.full_seconds, 4),
        }


def _day(options: argparse.Namespace, setup: Setup) -> tuple[list[sections.Row], Any]:
    row, run = sections.whole_day(setup, round(options.hours * 3600))
    rows = sections.printed([row, *row["events"]], lambda line: print(line, flush=True))
    return rows[:1], run


def _curve(options: argparse.Namespace) -> Curve:
    if options.server is not None:
        return fitted([json.loads(path.read_text()) for path in options.server], options.max_batch)
    if options.image_ms is not None:
        return Curve(options.fixed_ms / 1e3, options.image_ms / 1e3, options.max_batch, options.lanes)
    return example()


def _setup(options: argparse.Namespace, curve: Curve) -> Setup:
    if options.deadline_ms / 1e3 < 2 * curve.full_seconds:
        raise ValueError(f"--deadline-ms {options.deadline_ms:g}: two full batches take {2e3 * curve.full_seconds:.0f}")
    scaling = manifest.scaled_object()
    return Setup(
        curve=curve,
        scaling=scaling.between(min(scaling.minimum, options.replicas), options.replicas),
        start_seconds=options.start,
        deadline_seconds=options.deadline_ms / 1e3,
        balance=options.balance,
        seed=options.seed,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--sections", type=lambda text: text.split(","), default=list(SECTIONS), help=f"of {','.join(SECTIONS)}")
    add("--server", type=Path, nargs="+", help="documents of `milkweed bench server --sections capacity`")
    add("--fixed-ms", type=float, default=0.0, help="of a batch, whatever its images; with --image-ms")
    add("--image-ms", type=float, help="of each of its images")
    add("--max-batch", type=int, default=8, help="images of one batch at most")
    add("--lanes", type=int, default=1, help="images computed at the same time, on a CPU")
    add("--replicas", type=int, default=10_000, help="at most; the day's peak takes half of them at full load")
    add("--hours", type=float, default=DAY_SECONDS / 3600, help="of the day")
    add("--start", type=float, default=60.0, help="seconds until a new pod serves")
    add("--load", type=float, default=0.6, help="share of the capacity to aim at, of the sections few and second")
    add("--deadline-ms", type=float, default=1000.0, help="that callers give an answer")
    add("--balance", choices=BALANCES, default="random", help="the load balancer")
    add("--seed", type=int, default=0)
    add("--out", type=Path, help="JSON, and with the section day a picture beside it")
    return parser


if __name__ == "__main__":
    sys.exit(main())
