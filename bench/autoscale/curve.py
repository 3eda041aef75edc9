"""Curve: what a batch takes by its images, measured, and how many images are then in flight at a load."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RESULTS = Path(__file__).resolve().parents[1] / "results"


@dataclass(frozen=True)
class Curve:
    """Seconds of a batch: `fixed_seconds`, and `image_seconds` for each place.

    Args:
        max_batch: images of one batch at most.
        lanes: images that a CPU computes at the same time: places are whole rows of so many.

    Raises:
        ValueError: a batch that takes no time, of no images, or not of whole rows.
    """

    fixed_seconds: float
    image_seconds: float
    max_batch: int
    lanes: int = 1

    def __post_init__(self) -> None:
        if min(self.fixed_seconds, self.image_seconds) < 0 or self.seconds(1) <= 0:
            raise ValueError(f"a batch of {self.fixed_seconds} s + {self.image_seconds} s an image: must be above 0")
        if self.max_batch < 1 or self.lanes < 1 or self.max_batch % self.lanes:
            raise ValueError(f"max_batch {self.max_batch}, lanes {self.lanes}: must be 1 or more, whole rows of lanes")

    def seconds(self, images: int) -> float:
        """Of a batch of so many images."""
        return float(self.all_seconds(np.array([images]))[0])

    def all_seconds(self, images: Ints) -> Floats:
        """Of batches of so many images, of any shape."""
        return np.asarray(self.fixed_seconds + self.image_seconds * self.lanes * -(-images // self.lanes))

    @property
    def full_seconds(self) -> float:
        """Of a full batch."""
        return self.seconds(self.max_batch)

    @property
    def capacity(self) -> float:
        """Images a second at most: full batches, one after the other."""
        return self.max_batch / self.full_seconds

    def steady(self, load: float) -> tuple[float, float]:
        """Images that wait or are computed, the mean, and the share of the time at work, at a share of the capacity.

        From the Markov chain of what waits when a batch ends: of x images max(1, min(x, max_batch)) are computed next,
        meanwhile a Poisson number comes. By renewal and reward the mean is the area under the number in the system
        over the time, both of one batch and the idle time before it.

        Raises:
            ValueError: not a share above 0 and up to 0.95: closer to 1 the chain is cut off where it still matters.
        """
        if not 0 < load <= 0.95:
            raise ValueError(f"load {load}: must be above 0 and at most 0.95")
        rate, waiting = load * self.capacity, np.arange(24 * self.max_batch + 120)
        batch = np.clip(waiting, 1, self.max_batch)
        left = np.maximum(waiting - self.max_batch, 0)
        seconds = self.all_seconds(batch)
        factorials = np.array([math.lgamma(k + 1) for k in waiting])
        moves = np.zeros((len(waiting), len(waiting)))
        for x in waiting:
            mean = rate * seconds[x]
            come = np.exp(waiting * math.log(mean) - mean - factorials)
            moves[x, left[x] :] = come[: len(waiting) - left[x]]
        moves /= moves.sum(axis=1, keepdims=True)
        balance = moves.T - np.eye(len(waiting))
        balance[-1] = 1  # the shares sum up to 1, in the place of one of the equations, which depend on each other
        shares = np.linalg.solve(balance, (waiting == waiting[-1]).astype(float))
        area = (batch + left) * seconds + rate * seconds**2 / 2
        idle = np.where(waiting == 0, 1 / rate, 0)
        cycle = shares @ (seconds + idle)
        return float(shares @ area / cycle), float(shares @ seconds / cycle)

    def __str__(self) -> str:
        parts = f"{self.fixed_seconds * 1e3:.3g} ms + {self.image_seconds * 1e3:.3g} ms an image, {self.lanes} at once"
        return f"{parts}, batches up to {self.max_batch}: {self.capacity:.4g} images/s"


def example() -> Curve:
    """DeiT-Tiny on two cores: a forward an image, two at once (`lanes.json`), and the capacity that came out of it.

    Raises:
        OSError: the measured document is not there: a wheel has none.
    """
    measured = json.loads((RESULTS / "server_deit.json").read_text())
    return Curve(0.0, 1 / measured["capacity"], max_batch=8, lanes=measured["machine"]["cores"])


def fitted(documents: Sequence[Mapping[str, Any]], max_batch: int) -> Curve:
    """The line through the batches of documents of `milkweed bench server`; neither part below 0.

    From closed loops: half of the connections wait while the other half is computed, so n connections make batches of
    n / 2, a single one batches of 1, twice the largest batch and more make full ones. Least squares of relative errors.

    Raises:
        ValueError: another kind of document, or batches of one size only.
    """
    points = set()
    for document in documents:
        if document.get("benchmark") != "server":
            raise ValueError(f"a document of {document.get('benchmark')}: expected one of `milkweed bench server`")
        for row in document["rows"]:
            if row["section"] == "capacity" and row["images"] == 1 and row["goodput"]:
                batch = min(max(1.0, row["connections"] / 2), float(max_batch))
                points.add((batch, batch / row["goodput"]))
    if len({images for images, _ in points}) < 2:
        raise ValueError("batches of two sizes are needed: measure with --concurrency 1, then with 32 or more")
    images, seconds = (np.array(column) for column in zip(*sorted(points), strict=True))
    slope, fixed = (float(value) for value in np.polyfit(images, seconds, 1, w=1 / seconds))
    if fixed < 0:
        return Curve(0.0, float((seconds / images).mean()), max_batch)
    if slope < 0:
        return Curve(float(seconds.mean()), 0.0, max_batch)
    return Curve(fixed, slope, max_batch)
