"""Compute the thresholds of the autoscaler's ScaledObject from the capacity of one replica.

python -m milkweed.bench.autoscale                                              # DeiT-Tiny's, as deployed
python -m milkweed.bench.autoscale --single 548 --capacity 4000 --max-batch 64  # yours
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

EXAMPLE = Path(__file__).parent / "results" / "server_deit.json"
SHARES, BATCHES = (0.5, 0.6, 0.7, 0.8), 200_000
"""Shares of the capacity to aim at, and how many batches of each are simulated."""

Floats = NDArray[np.float64]
Row = dict[str, Any]


def batch_seconds(capacity: float, single: float | None, max_batch: int, lanes: int) -> Floats:
    """Return the seconds that a batch takes by its number of images, shape (max_batch + 1,).

    The cost is a straight line through a single image and a full batch, of which `single` and `capacity` images are
    computed per second. A CPU computes `lanes` images in parallel; without `single`, each such row takes equally long.
    """
    single = capacity / max(lanes, 1) if single is None else single
    if min(max_batch, lanes) < 1 or max_batch % lanes or not 0 < capacity / max_batch <= single <= capacity / lanes:
        raise ValueError(f"capacity {capacity:g}, single {single:g}, batch {max_batch}, lanes {lanes}: impossible")
    rows, full_rows, full = -(-np.arange(max_batch + 1) // lanes), max_batch // lanes, max_batch / capacity
    return np.where(rows, 1 / single + (full - 1 / single) * (rows - 1) / max(full_rows - 1, 1), 0.0)


def thresholds(by_images: Floats, share: float) -> Row:
    """Return the mean of images in flight, and the engine's busy fraction, at a share of the capacity.

    One replica is simulated: images come at random moments, and whatever waits when a batch ends is the next batch.
    """
    rng, most, waiting, area, busy, idle = np.random.default_rng(0), len(by_images) - 1, 0, 0.0, 0.0, 0.0
    rate = share * most / float(by_images[-1])
    for _ in range(BATCHES):
        if not waiting:
            waiting, idle = 1, idle + rng.exponential(1 / rate)
        seconds = float(by_images[min(waiting, most)])
        arrived = rng.poisson(rate * seconds)
        area, busy = area + seconds * (waiting + arrived / 2), busy + seconds
        waiting += arrived - min(waiting, most)
    loads = {"in_flight": round(area / (busy + idle), 2), "busy": round(busy / (busy + idle), 2)}
    return {"share": share, **loads, "full_batch_seconds": round(float(by_images[-1]), 4)}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line of the module's docstring; return 2 where an input is missing or impossible."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capacity", type=float, help="images per second of one replica")
    parser.add_argument("--single", type=float, help="images per second of one replica, one after the other")
    parser.add_argument("--max-batch", type=int, default=8, help="largest number of images in one batch")
    parser.add_argument("--lanes", type=int, default=1, help="images that a CPU computes in parallel")
    options = parser.parse_args(arguments)
    try:
        if options.capacity is None:
            measured = json.loads(EXAMPLE.read_text(encoding="utf-8"))
            options.capacity, options.lanes = measured["capacity"], measured["machine"]["cores"]
        by_images = batch_seconds(options.capacity, options.single, options.max_batch, options.lanes)
    except (OSError, ValueError) as error:
        print(f"autoscale: {error}", file=sys.stderr)
        return 2
    for share in SHARES:
        print("  ".join(f"{name} {value}" for name, value in thresholds(by_images, share).items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
