"""How the parts of a model get their plans: measured and remembered, or taken as they come."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from ....kernels.chain_ir import Problem
from ....kernels.impls.all import all_impls
from ....kernels.impls.base import OTHER_KIND, Engine
from ....kernels.tuning.cache import TuningCache, device_cache
from ....kernels.tuning.chain import Chain, CompiledChain
from ....kernels.tuning.default_plan import untuned_chain
from ....kernels.tuning.plan import every_span
from ....kernels.tuning.timing import Measure
from ....kernels.tuning.tuner import cached_chain, tune_chain
from .report import Source

Mode = Literal["auto", "off", "force"]
"""auto: what is not remembered is measured; off: nothing is measured; force: everything is, once a start."""


@dataclass(frozen=True)
class Tuning:
    """How to choose, and among what.

    Args:
        cache: what was measured before.
        engines: those of chains.
        measure: seconds of a call; the device's own timer when None.
    """

    mode: Mode = "auto"
    cache: TuningCache = field(default_factory=TuningCache)
    engines: Sequence[Engine] = field(default_factory=all_impls)
    measure: Measure | None = None


@dataclass(frozen=True)
class ChosenChain:
    """A chain made ready, and how it was chosen.

    Args:
        seconds: of one call when it was measured; None where it never was.
        discarded: engines that were wrong or failed, in words.
    """

    chain: CompiledChain
    source: Source
    seconds: float | None = None
    discarded: tuple[str, ...] = ()


class FreshCache(TuningCache):
    """A cache that knows only what this process put in; the file keeps the rest and gets what is new."""

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


def choose_chain(chain: Chain, problem: Problem, tuning: Tuning) -> ChosenChain:
    """The plan of a chain on a problem, held against plain evaluation before it is believed.

    Raises:
        TuningError: nothing runs the chain rightly, or the device no longer works.
        ValueError: the same, where nothing was measured.
    """
    if tuning.mode == "off":
        found = cached_chain(chain, problem, tuning.engines, tuning.cache)
        if found is None:
            return ChosenChain(untuned_chain(chain, problem, tuning.engines), "untuned")
        return ChosenChain(found.chain, "cached", found.seconds)
    tuned = tune_chain(chain, problem, tuning.engines, tuning.cache, tuning.measure)
    discarded = tuple(f"{row.engine} on {row.operators}: {row.refused}" for row in tuned.rows if row.discarded)
    return ChosenChain(tuned.chain, "cached" if tuned.cached else "measured", tuned.seconds, discarded)


def refusals(chain: Chain, problem: Problem, engines: Sequence[Engine]) -> dict[str, str]:
    """Engines that are made for some segment of the chain and run none in any tile variant, and why."""
    segments = [chain.segment(span) for span in every_span(len(chain))]
    told: dict[str, str] = {}
    runs: set[str] = set()
    for engine in engines:
        name = engine.name.partition(":")[0]
        for reason in (engine.refuses(segment, problem) for segment in segments):
            if reason is None:
                runs.add(name)
            elif reason != OTHER_KIND:
                told.setdefault(name, reason)
    return {name: reason for name, reason in told.items() if name not in runs}
