"""Times candidates against each other: CUDA graphs of many calls, taken in turn, medians; a CPU clock for dry runs."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median, quantiles
from typing import Protocol

import torch

from ....kernels.tuning.timing import capture, warm_up
from ..child import one_line

REPEATS = 20
"""Calls of one graph: the time of a replay is divided by them, so that launching the graph costs little."""

FEWEST = 5
"""Samples of each candidate, whatever time they take."""

Call = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Microseconds of one call: the median over samples and the distance between the quartiles.

    Args:
        sm_mhz, sm_mhz_least: the multiprocessors' clock while it was timed; None where nothing tells.
    """

    us: float
    iqr_us: float
    sm_mhz: float | None = None
    sm_mhz_least: float | None = None


class Timer(Protocol):
    """Times candidates."""

    def __call__(self, candidates: Mapping[str, Call], eager: Collection[str] = ()) -> dict[str, Timing | str]:
        """Return a timing each, or the reason why there is none, in a few words.

        Args:
            eager: candidates that are launched call by call, as a program without CUDA graphs does.
        """


def summary(samples: Sequence[float]) -> Timing:
    """Return the median and the quartile distance of samples in microseconds."""
    quarters = quantiles(samples, n=4) if len(samples) > 1 else (samples[0],) * 3
    return Timing(median(samples), quarters[2] - quarters[0])


class CudaTimer:
    """Graph replays between events, candidates interleaved: whatever else the machine does hits all of them.

    Args:
        samples: replays of each candidate, at most.
        seconds: after which no further round of samples begins (never fewer than FEWEST).
        clock: reads the multiprocessors' clock, MHz, while the replays run; None where nothing tells.
    """

    def __init__(
        self, device: torch.device, clock: Callable[[], float | None], *, samples: int = 50, seconds: float = 2.0
    ) -> None:
        self.device, self.clock, self.samples, self.seconds = device, clock, samples, seconds

    def __call__(self, candidates: Mapping[str, Call], eager: Collection[str] = ()) -> dict[str, Timing | str]:
        results: dict[str, Timing | str] = {}
        replays: dict[str, Call] = {}
        with torch.cuda.device(self.device):
            for name, call in candidates.items():
                try:
                    warm_up(call)
                    replays[name] = partial(_repeat, call) if name in eager else capture(call, REPEATS).replay
                except Exception as error:  # a candidate that cannot run is a row that says so; the others go on
                    results[name] = one_line(error)
                    torch.cuda.synchronize(self.device)
            results |= self._replay(replays)
        return {name: results[name] for name in candidates}

    def _replay(self, replays: Mapping[str, Call]) -> dict[str, Timing | str]:
        events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in replays}
        began, clocks = time.perf_counter(), list[float]()
        for taken in range(1, self.samples + 1):
            for name, replay in replays.items():
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                replay()
                end.record()
                events[name].append((start, end))
            if (mhz := self.clock()) is not None:  # the replays of this round are still running
                clocks.append(mhz)
            torch.cuda.synchronize(self.device)
            if taken >= FEWEST and time.perf_counter() - began > self.seconds:
                break
        middle, least = (median(clocks), min(clocks)) if clocks else (None, None)
        found: dict[str, Timing | str] = {}
        for name, pairs in events.items():
            timing = summary([start.elapsed_time(end) * 1e3 / REPEATS for start, end in pairs])
            found[name] = replace(timing, sm_mhz=middle, sm_mhz_least=least)
        return found


def _repeat(call: Call) -> None:
    for _ in range(REPEATS):
        call()


class HostTimer:
    """The same on a CPU's clock, never for a GPU figure; the fastest sample counts, which others disturb least."""

    def __init__(self, samples: int = 1) -> None:
        self.samples = samples

    def __call__(self, candidates: Mapping[str, Call], eager: Collection[str] = ()) -> dict[str, Timing | str]:
        taken: dict[str, list[float]] = {name: [] for name in candidates}
        failed: dict[str, Timing | str] = {}
        for _ in range(self.samples):
            for name in [name for name in candidates if name not in failed]:
                began = time.perf_counter()
                try:
                    candidates[name]()
                except Exception as error:  # as above
                    failed[name] = one_line(error)
                else:
                    taken[name].append((time.perf_counter() - began) * 1e6)
        timed = {name: replace(summary(took), us=min(took)) for name, took in taken.items() if name not in failed}
        return {**timed, **failed}
