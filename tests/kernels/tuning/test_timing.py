"""The timer of a CPU with a clock of the test's own, and inputs in turn."""

import pytest
import torch

from milkweed.kernels.tuning.timing import CPU_ROUNDS, Timed, host_seconds, timer_for


def test_a_call_is_timed_by_its_median() -> None:
    clock = {"now": 0.0}
    durations = iter([9.0, 9.0, 1.0, 2.0, 3.0, 100.0])  # the first is the warm-up

    def call() -> None:
        clock["now"] += next(durations)

    assert host_seconds(call, lambda: clock["now"]) == 3.0
    assert next(durations, None) is None  # long calls are made the least number of times


def test_short_calls_are_made_often_but_not_for_ever() -> None:
    calls = []
    assert host_seconds(lambda: calls.append(1), lambda: 0.0) == 0.0
    assert len(calls) == 1 + CPU_ROUNDS[1]


def test_inputs_rotate() -> None:
    inputs = [(torch.full((1,), float(i)), None) for i in range(3)]
    timed = Timed("a label", lambda x, _: x, inputs)
    assert [float(timed()) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert str(timed) == "a label"


def test_a_cpu_is_timed_by_the_clock() -> None:
    assert timer_for(torch.device("cpu")) is host_seconds


@pytest.mark.gpu
def test_a_graph_s_calls_are_timed() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    small, large = (torch.randn(n, n, device=device) for n in (256, 4096))
    measure = timer_for(device)
    assert 0 < measure(lambda: small @ small) < measure(lambda: large @ large) < 1
