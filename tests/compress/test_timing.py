"""Times are in turns: a machine that slows down half-way changes no ratio."""

from typing import Any

import pytest
import torch
from torch import Tensor

from milkweed.compress import timing
from milkweed.compress.timing import time_in_turns


class Clock:
    """A clock that only the forwards move; from some time on all of them take three times as long."""

    def __init__(self, slow_from: float) -> None:
        self.now, self.slow_from = 0.0, slow_from
        self.last: object = None

    def perf_counter(self) -> float:
        return self.now


class Timed:
    """A forward that takes so many seconds for each image, and longer after another one, which had the caches."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.seconds = clock, seconds

    def blank(self, count: int) -> Tensor:
        return torch.zeros(count, 1)

    def run(self, images: Tensor) -> None:
        self.clock.now += self.seconds * len(images) * (3 if self.clock.now >= self.clock.slow_from else 1)
        self.clock.now += 0.005 if self.clock.last is not self else 0.0
        self.clock.last = self


@pytest.mark.parametrize("slow_from", [0.0, 0.5, 1.0, 1e9])
def test_ratios_hold_whatever_the_machine_does(slow_from: float, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(slow_from)
    monkeypatch.setattr(timing, "time", clock)
    forwards: Any = {"dense": Timed(clock, 0.02), "half": Timed(clock, 0.01), "tenth": Timed(clock, 0.002)}
    found = time_in_turns(forwards, (1, 4))
    for batch in (1, 4):
        assert found["half"][batch] == pytest.approx(found["dense"][batch] / 2)
        assert found["tenth"][batch] == pytest.approx(found["dense"][batch] / 10)
        assert found["dense"][batch] in (pytest.approx(20), pytest.approx(60))
