"""Chooses among measured models: the one that meets a target best."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import inf
from typing import Any

from ..models.confidence import ConfidenceThreshold
from ..models.report.frontier import Quality, pareto_frontier


class TargetError(ValueError):
    """No model that was tried meets the target; the message says what can be had."""


@dataclass(frozen=True, eq=False)
class MeasuredCandidate:
    """A model that was measured; each is only equal to itself.

    Args:
        name: its recipe in a few words.
        quality: on the held-out images.
        ms: milliseconds an image by batch size, in the backend and precision that it is fastest in.
        bytes: of its bundle, or a little more.
        how: backend and precision.
        confidence: from which score on its answers are sure; None where that cannot be told.
    """

    name: str
    quality: Quality
    ms: dict[int, float]
    bytes: int
    how: str
    confidence: ConfidenceThreshold | None = None


@dataclass(frozen=True)
class Target:
    """What the result has to reach; one of the four, or none, which means MAX_DROP.

    Args:
        speedup: over the dense model in the backend and float32 that it is fastest in, at each batch size.
        ms: milliseconds an image at most, at each batch size.
        drop: points of top-1 that may be lost at most, by the lower end of the interval of the expected change.
        bytes: of the bundle at most. It alone lets the result be slower than the dense model.

    Raises:
        ValueError: a value that cannot be, or more than one.
    """

    speedup: float | None = None
    ms: float | None = None
    drop: float | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        targets = {name: value for name, value in vars(self).items() if value is not None}
        if len(targets) > 1:
            raise ValueError(f"targets {' and '.join(targets)}: only one can be asked for")
        for name, value in targets.items():
            if not 0 < value < inf:
                raise ValueError(f"target {name} {value} must be a number above 0")
        if not targets:
            object.__setattr__(self, "drop", MAX_DROP)


MAX_DROP = 2.0

AS_FAST = 1.03
"""Where a model is hardly slower than the fastest, noise would decide between them: the one with less KL is chosen."""


def pick(models: Sequence[MeasuredCandidate], dense: MeasuredCandidate, target: Target) -> MeasuredCandidate:
    """Return the model that meets the target: with the least KL, or for `drop` one of the fastest.

    Raises:
        TargetError: none does.
    """
    if target.bytes is not None:
        kept = [model for model in models if model.bytes <= target.bytes]
        return _nearest(kept) or _refuse(f"{target.bytes:,} bytes", models, lambda model: model.bytes, "bytes")
    faster = [model for model in models if speedup(model, dense) >= 1]
    if target.drop is not None:
        if kept := keeping(faster, target.drop):
            return fastest(kept, dense)
        best = max(faster, key=lambda model: model.quality.change.low, default=None)
        raise TargetError(_no_drop(target.drop, best))
    if target.speedup is not None:
        kept = [model for model in faster if speedup(model, dense) >= target.speedup]
        if not kept:
            raise TargetError(_no_speed(f"a speedup of {target.speedup:g} over dense", faster, dense))
    else:
        kept = [model for model in faster if max(model.ms.values()) <= (target.ms or 0)]
        if not kept:
            raise TargetError(_no_speed(f"{target.ms:g} ms/image", faster, dense))
    nearest = _nearest(kept)
    assert nearest is not None
    return nearest


def keeping(models: Sequence[MeasuredCandidate], drop: float) -> list[MeasuredCandidate]:
    """Return the models of the Pareto frontier that lose at most so many points of top-1, the slowest first.

    They are tested in that order up to the first that may lose more: so a promise is as sure as one test of it, however
    many models are tried (a fixed sequence of tests).
    """
    if not models:
        return []
    ordered = pareto_frontier(models, next(iter(models[0].ms)))
    return list(takewhile(lambda model: model.quality.change.low >= -drop, reversed(ordered)))


def fastest(models: Sequence[MeasuredCandidate], dense: MeasuredCandidate) -> MeasuredCandidate:
    """Return the model with the least KL among those that are about as fast as the fastest one."""
    most = max(speedup(model, dense) for model in models)
    as_fast = [model for model in models if AS_FAST * speedup(model, dense) >= most]
    return min(as_fast, key=lambda model: model.quality.kl.value)


def speedup(model: MeasuredCandidate, dense: MeasuredCandidate) -> float:
    """The speedup over the dense model, at the batch size where that is least."""
    return min(dense.ms[batch] / ms for batch, ms in model.ms.items())


def _nearest(models: Sequence[MeasuredCandidate]) -> MeasuredCandidate | None:
    return min(models, key=lambda model: model.quality.kl.value, default=None)


def _refuse(
    target: str, models: Sequence[MeasuredCandidate], size: Callable[[MeasuredCandidate], Any], unit: str
) -> MeasuredCandidate:
    least = min(models, key=size)
    raise TargetError(
        f"{target} cannot be reached: the least of {len(models)} models has {size(least):,} {unit} "
        f"({_described(least)})"
    )


def _no_speed(target: str, models: Sequence[MeasuredCandidate], dense: MeasuredCandidate) -> str:
    if not models:
        return f"{target} cannot be reached: none of the models is faster than the dense one"
    best = max(models, key=lambda model: speedup(model, dense))
    slowest = max(best.ms.values())
    return (
        f"{target} cannot be reached: the fastest of {len(models)} models has a speedup of "
        f"{speedup(best, dense):.2f}, {slowest:.2f} ms/image ({_described(best)})"
    )


def _no_drop(most: float, best: MeasuredCandidate | None) -> str:
    if best is None:
        return f"a loss of at most {most:g} points: none of the models is faster than the dense one"
    change = best.quality.change
    return (
        f"a loss of at most {most:g} points cannot be shown by {best.quality.images} images: the surest model "
        f"lost {-change.value:.2f} and, by the interval, up to {-change.low:.2f} points ({_described(best)}); "
        "more images may tell"
    )


def _described(model: MeasuredCandidate) -> str:
    return f"{model.name}, {model.how}, KL {model.quality.kl.value:.4f}"
