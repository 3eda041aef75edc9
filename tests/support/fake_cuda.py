"""CUDA as far as the timer uses it, without a device: two devices, streams, graphs that hold work, and a clock."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

Work = Callable[[], object]


@dataclass
class Stream:
    """A stream of the device that is current when it is made; in a capture, its work goes to `graph`."""

    device: int
    graph: "Graph | None" = None

    def wait_stream(self, _: "Stream") -> None: ...

    def synchronize(self) -> None: ...


@dataclass
class Graph:
    """Work that a replay does again."""

    work: list[Work] = field(default_factory=list)

    def replay(self) -> None:
        for work in self.work:
            work()


class FakeCuda:
    """Stands in for torch.cuda. As there, work goes to the current stream only if that belongs to the work's device.

    Attributes:
        graphs: every graph in order.
        modes: the error mode of each capture.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = 0.0
        self.stream = Stream(0)
        self.default_capture: Stream | None = None
        self.graphs: list[Graph] = []
        self.modes: list[str] = []
        for name in ("device", "Stream", "current_stream", "stream", "graph", "CUDAGraph", "Event"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, f"_{name}"))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)

    def launch(self, device: int, seconds: float, result: Tensor) -> Tensor:
        """Launch a kernel that takes some seconds and fills `result` with ones."""

        def work() -> None:
            self.clock += seconds
            result.fill_(1)

        captured = self.stream.graph if self.stream.device == device else None
        captured.work.append(work) if captured else work()
        return result

    @contextmanager
    def _device(self, device: torch.device) -> Iterator[None]:
        with self._stream(Stream(device.index)):
            yield

    def _Stream(self) -> Stream:
        return Stream(self.stream.device)

    def _current_stream(self) -> Stream:
        return self.stream

    @contextmanager
    def _stream(self, stream: Stream) -> Iterator[None]:
        before, self.stream = self.stream, stream
        yield
        self.stream = before

    @contextmanager
    def _graph(self, graph: Graph, stream: Stream | None = None, capture_error_mode: str = "global") -> Iterator[None]:
        self.modes.append(capture_error_mode)
        if stream is None:
            stream = self.default_capture = self.default_capture or self._Stream()
        stream.graph = graph
        with self._stream(stream):
            yield
        stream.graph = None

    def _CUDAGraph(self) -> Graph:
        self.graphs.append(Graph())
        return self.graphs[-1]

    def _Event(self, enable_timing: bool) -> "Event":
        return Event(self)


class Event:
    """The time at which it was recorded."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda, self.at = cuda, 0.0

    def record(self) -> None:
        self.at = self.cuda.clock

    def elapsed_time(self, end: "Event") -> float:
        return (end.at - self.at) * 1e3
