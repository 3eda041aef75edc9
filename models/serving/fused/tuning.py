"""Chooses the plans of chains: measured and remembered, or without measuring."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch

from ....kernels.chain_ir import Problem
from ....kernels.impls.all import all_impls
from ....kernels.impls.base import OTHER_KIND, Impl, family
from ....kernels.tuning.cache import TuningCache, device_cache
from ....kernels.tuning.chain import Chain, CompiledChain
from ....kernels.tuning.default_plan import untuned_chain
from ....kernels.tuning.plan import every_span
from ....kernels.tuning.timing import Measure
from ....kernels.tuning.tuner import cached_chain, tune_chain
from .report import PlanSource

Way = TypeVar("Way")

Mode = Literal["auto", "off", "force"]
"""auto: measure what is not remembered; off: measure nothing; force: measure everything once a start."""


@dataclass(frozen=True)
class Tuning:
    """How to choose plans, and among which impls.

    Args:
        cache: earlier measurements.
        impls: impls for chains.
        measure: measures the seconds of a call; the device's timer when None.
    """

    mode: Mode = "auto"
    cache: TuningCache = field(default_factory=TuningCache)
    impls: Sequence[Impl] = field(default_factory=all_impls)
    measure: Measure | None = None


@dataclass(frozen=True)
class Chosen(Generic[Way]):
    """The way to compute a part that was chosen, such as a compiled chain, and how.

    Args:
        seconds: time of one call when it was measured; None where it never was.
        discarded: ways or impls that were wrong or failed, with the reason.
    """

    way: Way
    source: PlanSource
    seconds: float | None = None
    discarded: tuple[str, ...] = ()


class FreshCache(TuningCache):
    """A cache that gives back only what this process put in; the file keeps old entries and gets the new ones."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__(path)
        self._put: dict[str, Any] = {}

    def get(self, key: str) -> Any:
        return self._put.get(key)

    def put(self, key: str, value: Any) -> None:
        self._put[key] = value
        super().put(key, value)


def open_cache(device: torch.device, mode: Mode, folder: Path | None = None) -> TuningCache:
    """The cache of a device, in `folder` or where the user's caches are."""
    cache = device_cache(device, folder)
    return FreshCache(cache.path) if mode == "force" else cache


def choose_chain(chain: Chain, problem: Problem, tuning: Tuning) -> Chosen[CompiledChain]:
    """Choose the plan of a chain on a problem; it is compared with plain evaluation before it is taken.

    Raises:
        TuningError: no impl computes the chain rightly, or the device no longer works.
        ValueError: no impl runs the chain, where nothing was measured.
    """
    if tuning.mode == "off":
        cached = cached_chain(chain, problem, tuning.impls, tuning.cache)
        if cached is None:
            return Chosen(untuned_chain(chain, problem, tuning.impls), "untuned")
        return Chosen(cached.chain, "cached", cached.seconds)
    tuned = tune_chain(chain, problem, tuning.impls, tuning.cache, tuning.measure)
    discarded = tuple(f"{row.impl} on {row.operators}: {row.refused}" for row in tuned.rows if row.discarded)
    return Chosen(tuned.chain, "cached" if tuned.cached else "measured", tuned.seconds, discarded)


def refusals(chain: Chain, problem: Problem, impls: Sequence[Impl]) -> dict[str, str]:
    """Why impls that are made for a segment of the chain run none of its segments, by impl."""
    segments = [chain.segment(span) for span in every_span(len(chain))]
    reasons: dict[str, str] = {}
    runs: set[str] = set()
    for impl in impls:
        name = family(impl.name)
        for reason in (impl.refuses(segment, problem) for segment in segments):
            if reason is None:
                runs.add(name)
            elif reason != OTHER_KIND:
                reasons.setdefault(name, reason)
    return {name: reason for name, reason in reasons.items() if name not in runs}
