"""How the parts of a model get their plans: measured and remembered, or taken as they come."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from ...kernels.engines.base import OTHER_KIND, Engine
from ...kernels.engines.registry import all_engines
from ...kernels.operators import Problem
from ...kernels.tuning.cache import DIRECTORY_VARIABLE, TuningCache, device_cache
from ...kernels.tuning.chain import Chain, CompiledChain, compile_plan, invalid
from ...kernels.tuning.key import tuning_key
from ...kernels.tuning.plan import Plan, every_span
from ...kernels.tuning.timing import Measure
from ...kernels.tuning.tuner import CACHED_IMAGES, tune_chain
from ...kernels.tuning.untuned import untuned_chain
from ...kernels.tuning.verification import Truth, failure
from .report import Source

logger = logging.getLogger("milkweed.fused")

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
    engines: Sequence[Engine] = field(default_factory=all_engines)
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
    environment = {**os.environ}
    environment.pop(DIRECTORY_VARIABLE, None)  # whoever calls has read it
    if folder is not None:
        environment[DIRECTORY_VARIABLE] = str(folder)
    cache = device_cache(device, environment)
    return FreshCache(cache.path) if mode == "force" else cache


def choose_chain(chain: Chain, problem: Problem, tuning: Tuning) -> ChosenChain:
    """The plan of a chain on a problem, held against plain evaluation before it is believed.

    Raises:
        TuningError: nothing runs the chain rightly, or the device no longer works.
        ValueError: the same, where nothing was measured.
    """
    if tuning.mode == "off":
        with torch.no_grad():
            found = _remembered(chain, problem, tuning)
            return found or ChosenChain(untuned_chain(chain, problem, tuning.engines), "untuned")
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


def _remembered(chain: Chain, problem: Problem, tuning: Tuning) -> ChosenChain | None:
    """The plan that was measured before, if it can run here and still gives right values."""
    match tuning.cache.get(tuning_key(chain, problem, tuning.engines)):
        case {"seconds": float(seconds), **entry}:
            plan = _plan_of(entry)
        case _:
            return None
    if plan is None or invalid(chain, plan, problem, tuning.engines) is not None:
        return None
    truth = Truth(chain.operators, chain.widths[0], chain.residual_width, problem, CACHED_IMAGES)
    try:
        compiled = compile_plan(chain, plan, problem, tuning.engines)
        complaint = truth.judge(compiled)
    except Exception as error:
        complaint = failure(f"plan {plan}", error, problem)
    if complaint is not None:
        logger.warning("remembered plan %s is left out: %s", plan, complaint)
        return None
    return ChosenChain(compiled, "cached", seconds)


def _plan_of(entry: Any) -> Plan | None:
    try:
        return Plan.from_json(entry)
    except ValueError:
        return None
