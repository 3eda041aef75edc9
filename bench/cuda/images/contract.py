"""The equality contract of the loaders: how far from the reference's pixels each may be, and how far it is.

Differences are in levels 0..255, before normalisation, against `PillowLoader`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ....loaders import PillowLoader, PreprocessSpec
from ....loaders.base import LoadResult

BATCH = 32
ROUNDING = 1e-3
"""Levels; a normalised pixel and its limit are both float32."""

NOT_A_NUMBER = 1e6
"""Levels; JSON has no infinity."""


@dataclass(frozen=True)
class Limit:
    """Levels: the mean over an image, for the worst image, and the largest of any pixel."""

    mean: float
    max: float

    def holds(self, mean: float, largest: float) -> bool:
        """Both are within it."""
        return mean <= self.mean + ROUNDING * (self.mean > 0) and largest <= self.max + ROUNDING * (self.max > 0)

    def __str__(self) -> str:
        return f"{self.mean:g} / {self.max:g}"


LIMITS = {
    "timm": Limit(0, 0),
    "cpu": Limit(0.05, 8),
    "dali exact": Limit(0.15, 8),
    "dali fused": Limit(0.3, 32),
    "dali gpu": Limit(1.0, 48),
}
"""The limits of each loader. The one of DALI on a GPU is a proposal: no GPU has been asked yet."""


@dataclass(frozen=True)
class Equality:
    """How far a loader is from the reference over some images.

    Args:
        images: that both loaded; `wrong_status` more got an error from one of them alone, or another code.
        black: images of nothing but one level where the reference has a picture.
        worst: name of the image with the largest mean.
    """

    loader: str
    what: str
    images: int
    wrong_status: int
    worst_mean: float
    mean: float
    max: float
    black: int
    worst: str
    limit: Limit
    note: str = ""

    @property
    def passed(self) -> bool:
        """All images were loaded, and within the limit."""
        whole = self.images > 0 and not self.wrong_status and not self.black
        return whole and self.limit.holds(self.worst_mean, self.max)

    def as_json(self) -> dict[str, Any]:
        """Plain data with the verdict."""
        return {**asdict(self), "passed": self.passed}


class Loads(Protocol):
    """What is held against the reference: a `Loader`, or something else that answers like one."""

    def load(self, items: Sequence[bytes], /) -> LoadResult:
        """See `Loader.load`."""
        ...


def codes(loader: Loads, bodies: Sequence[bytes], size: int) -> tuple[Tensor, list[str]]:
    """Pixels (n, 3, size, size) on the CPU, NaN where there is an error; and "ok" or the error's code, by place."""
    result = loader.load(bodies)
    found = [result.errors[place].code if place in result.errors else "ok" for place in range(len(bodies))]
    pixels = torch.full((len(bodies), 3, size, size), float("nan"))
    pixels[result.ok] = result.pixels.cpu().float()
    return pixels, found


def off(pixels: Tensor, wanted: Tensor, spec: PreprocessSpec) -> Tensor:
    """Absolute difference of normalised pixels (n, 3, S, S), in levels; what is no number is very far off."""
    levels = (pixels - wanted).abs() * torch.tensor(spec.std).view(3, 1, 1) * 255
    return levels.nan_to_num(nan=NOT_A_NUMBER, posinf=NOT_A_NUMBER)


def equality(
    loader: Loads, name: str, what: str, bodies: Mapping[str, bytes], spec: PreprocessSpec, limit: Limit
) -> Equality:
    """Hold a loader against the reference over all bodies, by name, `BATCH` at a time."""
    reference = PillowLoader(spec)
    names = list(bodies)
    means: dict[str, float] = {}
    largest, wrong, black = 0.0, 0, 0
    for part in _parts(names):
        batch = [bodies[one] for one in part]
        pixels, found = codes(loader, batch, spec.size)
        wanted, expected = codes(reference, batch, spec.size)
        wrong += sum(a != b for a, b in zip(found, expected, strict=True))
        both = [at for at in range(len(part)) if found[at] == expected[at] == "ok"]
        levels = off(pixels[both], wanted[both], spec)
        means |= {part[at]: float(level.mean()) for at, level in zip(both, levels, strict=True)}
        largest = max(largest, float(levels.max()) if both else 0.0)
        black += sum(_flat(pixels[at]) and not _flat(wanted[at]) for at in both)
    worst = max(means, key=lambda one: means[one], default="")
    mean = sum(means.values()) / max(1, len(means))
    return Equality(name, what, len(means), wrong, means.get(worst, 0.0), mean, largest, black, worst, limit)


def _flat(pixels: Tensor) -> bool:
    """Every channel has one value: what an engine that never ran leaves behind."""
    return bool((pixels.amax((1, 2)) == pixels.amin((1, 2))).all())


def _parts(names: list[str]) -> Iterable[list[str]]:
    return (names[start : start + BATCH] for start in range(0, len(names), BATCH))
