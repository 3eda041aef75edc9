"""The timers with a clock of the test's own: a CPU's, and CUDA's on two devices that are not there."""

from functools import partial

import pytest
import torch

from milkweed.kernels.tuning.timing import CPU_ROUNDS, GRAPH_CALLS, Timed, host_seconds, timer_for

from ...support.fake_cuda import FakeCuda


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


def test_the_second_device_is_timed_as_the_first_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's default stream for captures stays with the device that captured first: others' graphs were empty."""
    cuda = FakeCuda(monkeypatch)
    for device, seconds in ((0, 0.001), (1, 0.004)):
        measure = timer_for(torch.device("cuda", device))
        call = partial(cuda.launch, device, seconds, torch.zeros(2))
        assert measure(call) == pytest.approx(seconds)
        assert len(cuda.graphs[-1].work) >= GRAPH_CALLS[0]
    assert cuda.stream.device == 0


def test_a_capture_that_holds_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)
    elsewhere = partial(cuda.launch, 1, 0.001, torch.zeros(2))
    with pytest.raises(RuntimeError, match="the graph is empty"):
        timer_for(torch.device("cuda", 0))(elsewhere)


def test_other_threads_do_not_spoil_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)
    timer_for(torch.device("cuda", 0))(partial(cuda.launch, 0, 0.001, torch.zeros(2)))
    assert cuda.modes == ["thread_local"]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_an_empty_graph_is_refused_on_a_gpu() -> None:
    result = torch.ones(2, device="cuda")
    with pytest.raises(RuntimeError, match="the graph is empty"):
        timer_for(torch.device("cuda", torch.cuda.current_device()))(lambda: result)


@pytest.mark.gpu
def test_a_graph_s_calls_are_timed() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    small, large = (torch.randn(n, n, device=device) for n in (256, 4096))
    measure = timer_for(device)
    assert 0 < measure(lambda: small @ small) < measure(lambda: large @ large) < 1
