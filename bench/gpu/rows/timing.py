"""Times candidates against each other: CUDA graphs of many calls, taken in turn, medians; a CPU clock for dry runs."""

import itertools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median, quantiles
from typing import Protocol

import torch
from torch import Tensor

from ....kernels.tuning.timing import capture, warm_up

REPEATS = 20
"""Calls of one graph: the time of a replay is divided by them, so that launching the graph costs little."""

Call = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Microseconds of one call: the median over samples and the distance between the quartiles.

    Args:
        sm_mhz, sm_mhz_least: the multiprocessors' clock while it was timed; None where nothing tells.
    """

    us: float
    iqr_us: float
    samples: int
    sm_mhz: float | None = None
    sm_mhz_least: float | None = None


class Timer(Protocol):
    """Times candidates that are lists of calls, one for each input set, so that inputs rotate."""

    def __call__(
        self, candidates: Mapping[str, Sequence[Call]], eager: Collection[str] = ()
    ) -> dict[str, Timing | str]:
        """A timing each, or the reason why there is none, in a few words.

        Args:
            eager: candidates that are launched call by call, as a program without CUDA graphs does.
        """


def summary(samples: Sequence[float]) -> Timing:
    """Samples in microseconds -> their median and quartile distance."""
    quarters = quantiles(samples, n=4) if len(samples) > 1 else (samples[0],) * 3
    return Timing(median(samples), quarters[2] - quarters[0], len(samples))


class CudaTimer:
    """Graph replays between events, candidates interleaved: whatever else the machine does hits all of them.

    Args:
        samples: replays of each candidate, at most.
        seconds: after which no further round of samples begins (never fewer than 5).
        clock: reads the multiprocessors' clock, MHz, while the replays run; None where nothing tells.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        samples: int = 50,
        seconds: float = 2.0,
        clock: Callable[[], float | None] = lambda: None,
    ) -> None:
        self.device = device
        self.clock = clock
        self.samples = samples
        self.seconds = seconds

    def __call__(
        self, candidates: Mapping[str, Sequence[Call]], eager: Collection[str] = ()
    ) -> dict[str, Timing | str]:
        results: dict[str, Timing | str] = {}
        replays: dict[str, Call] = {}
        with torch.cuda.device(self.device):
            for name, calls in candidates.items():
                call = partial(_next_call, itertools.cycle(calls))
                try:
                    warm_up(call)
                    replays[name] = partial(_repeat, call) if name in eager else capture(call, REPEATS).replay
                except Exception as error:  # a candidate that cannot run is a row that says so; the others go on
                    results[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
                    torch.cuda.synchronize(self.device)
            results |= self._replay(replays)
        return {name: results[name] for name in candidates}

    def _replay(self, replays: Mapping[str, Call]) -> dict[str, Timing | str]:
        events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in replays}
        began, clocks = time.perf_counter(), list[float]()
        for taken in range(self.samples):
            for name, replay in replays.items():
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                replay()
                end.record()
                events[name].append((start, end))
            if (mhz := self.clock()) is not None:  # the replays of this round are still running
                clocks.append(mhz)
            torch.cuda.synchronize(self.device)
            if taken >= 4 and time.perf_counter() - began > self.seconds:
                break
        middle, least = (median(clocks), min(clocks)) if clocks else (None, None)
        return {
            name: replace(
                summary([start.elapsed_time(end) * 1e3 / REPEATS for start, end in pairs]),
                sm_mhz=middle,
                sm_mhz_least=least,
            )
            for name, pairs in events.items()
        }


def _repeat(call: Call) -> None:
    for _ in range(REPEATS):
        call()


def _next_call(turns: Iterator[Call]) -> object:
    return next(turns)()


class HostTimer:
    """The same on a CPU's clock, never for a GPU figure.

    Args:
        fastest: take the fastest sample, which is what a shared machine disturbs least, not the median.
    """

    def __init__(self, *, samples: int = 3, fastest: bool = False) -> None:
        self.samples = samples
        self.fastest = fastest

    def __call__(
        self, candidates: Mapping[str, Sequence[Call]], eager: Collection[str] = ()
    ) -> dict[str, Timing | str]:
        taken: dict[str, list[float]] = {name: [] for name in candidates}
        failed: dict[str, str] = {}
        for _ in range(self.samples):
            for name, calls in candidates.items():
                if name in failed:
                    continue
                try:
                    began = time.perf_counter()
                    for call in calls:
                        call()
                    taken[name].append((time.perf_counter() - began) * 1e6 / len(calls))
                except Exception as error:
                    failed[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        return {name: failed[name] if name in failed else self._summary(taken[name]) for name in candidates}

    def _summary(self, samples: Sequence[float]) -> Timing:
        found = summary(samples)
        return replace(found, us=min(samples)) if self.fastest else found


def input_sets(make: Callable[[], Tensor], cache_bytes: int, most: int = REPEATS) -> list[Tensor] | None:
    """Inputs that rotate so that no call finds its own in the cache; None where `most` of them would still fit in it.

    Args:
        make: a fresh random input.
        cache_bytes: of the level-2 cache.
    """
    first = make()
    needed = max(3, -(-2 * cache_bytes // first.nbytes))
    if needed > most:
        return None
    return [first, *(make() for _ in range(needed - 1))]
