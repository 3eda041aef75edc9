"""Times a call on a device: the median of several runs on rotating inputs, on CUDA within a graph."""

import itertools
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import torch
from torch import Tensor

from ..impls.base import Call

Inputs = tuple[Tensor, Tensor | None]
Measure = Callable[[Callable[[], object]], float]
"""Returns the seconds that a call takes; `str` of the tuner's calls says what they are."""

CPU_ROUNDS, CPU_SECONDS = (5, 50), 0.05
GRAPH_CALLS, GRAPH_ROUNDS = (3, 20), (7, 50)
GRAPH_SECONDS = 0.002
"""How long one replay should take: long enough for the clock, short enough for many replays."""

MEASURING_SECONDS = 0.03
"""Time for one candidate's replays, unless their least number takes longer."""


class Timed:
    """Calls a runner on one input after the other, so that caches do not hold an input from the call before.

    Args:
        label: text that says what is timed.
        run: the runner.
        inputs: inputs that are taken in turn.
    """

    def __init__(self, label: str, run: Call, inputs: Sequence[Inputs]) -> None:
        self.label = label
        self._run = run
        self._inputs = itertools.cycle(inputs)

    def __call__(self) -> Tensor:
        return self._run(*next(self._inputs))

    def __str__(self) -> str:
        return self.label


def timer_for(device: torch.device) -> Measure:
    """Return the timer of a device."""
    return partial(graph_seconds, device) if device.type == "cuda" else host_seconds


def host_seconds(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the median time of a call that returns when its work is done."""
    call()
    spent: list[float] = []
    while len(spent) < CPU_ROUNDS[0] or (sum(spent) < CPU_SECONDS and len(spent) < CPU_ROUNDS[1]):
        started = clock()
        call()
        spent.append(clock() - started)
    return median(spent)


def graph_seconds(device: torch.device, call: Callable[[], object]) -> float:
    """Return the median time of a call within a CUDA graph of many: so it runs in the captured forward, without Python.

    Raises:
        RuntimeError: the call cannot be captured, so the forward could not be captured with it.
    """
    with torch.cuda.device(device):
        calls = _between(GRAPH_CALLS, GRAPH_SECONDS / warm_up(call))
        graph = capture(call, calls)
        spent = _replay(graph, GRAPH_ROUNDS[0])
        rounds = _between(GRAPH_ROUNDS, MEASURING_SECONDS / max(median(spent), 1e-6))
        spent += _replay(graph, rounds - len(spent))
    return median(spent) / calls


def _between(bounds: tuple[int, int], value: float) -> int:
    return max(bounds[0], min(bounds[1], int(value)))


def warm_up(call: Callable[[], object]) -> float:
    """Make some calls on a separate stream, so that what a first call allocates or chooses stays out of the graph.

    Returns:
        Seconds of the last one, launching included.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
        side.synchronize()
        started = time.perf_counter()
        call()
        side.synchronize()
        seconds = time.perf_counter() - started
    torch.cuda.current_stream().wait_stream(side)
    return max(seconds, 1e-6)


def capture(call: Callable[[], object], calls: int) -> torch.cuda.CUDAGraph:
    """Capture a graph of so many calls on the current device, and replay it once.

    Args:
        call: if it returns a tensor of floats, each call must compute all of it anew.

    Raises:
        RuntimeError: the call cannot be captured, or a replay does not compute its result, as when the call runs on
            another stream than the captured one.
    """
    graph = torch.cuda.CUDAGraph()
    # PyTorch's own stream for captures belongs to the device that captured first. The outer context goes back to the
    # caller's stream even if ending the capture fails, and thread_local lets other threads ask CUDA for their memory.
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for _ in range(calls):
            result = call()
    floats = result if isinstance(result, Tensor) and result.is_floating_point() else None
    if floats is not None:
        with torch.inference_mode():
            floats.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    if floats is not None and bool(floats.isnan().all()):
        raise RuntimeError("the graph is empty: a replay does not compute the result")
    return graph


def _replay(graph: torch.cuda.CUDAGraph, rounds: int) -> list[float]:
    """Return the seconds of each replay."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(rounds)]
    for start, end in events:
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) / 1e3 for start, end in events]
