"""The engine thread: failures stay in their batch, liveness tells the truth, stopping drains."""

import queue
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from milkweed.inference.errors import InferenceError
from milkweed.inference.results import BatchResult, Predictions
from milkweed.loaders.headers.validate import validate
from milkweed.server.engine.engine import Engine
from milkweed.server.engine.events import EngineEvents
from milkweed.server.scheduler.cost_model import CostModel
from milkweed.server.scheduler.request import Batch, Request
from milkweed.server.scheduler.scheduler import Scheduler

from ...support.server_parts import HeldModel, encoded, make_pipeline


class Rig(EngineEvents):
    """An engine over one held model; what it delivers comes out of a queue."""

    def __init__(self, stall_seconds: float = 60.0) -> None:
        self.now = 0.0
        self.model = HeldModel()
        self.scheduler = Scheduler(max_queue_images=100, clock=lambda: self.now)
        self.scheduler.add_model("held", max_batch_pixels=10**9, costs=[CostModel((), 4)])
        self.delivered: queue.Queue[tuple[Batch, BatchResult | None]] = queue.Queue()
        self.prepared: Future[None] = Future()
        self.has_ended = threading.Event()
        self.engine = Engine(self.scheduler, self, stall_seconds=stall_seconds, clock=lambda: self.now)

    def start(self) -> None:
        self.engine.start(lambda: {"held": make_pipeline(self.model)})

    def ready(self, engine_id: int, error: BaseException | None) -> None:
        self.prepared.set_exception(error) if error is not None else self.prepared.set_result(None)

    def batch_done(self, batch: Batch, result: BatchResult | None) -> None:
        self.delivered.put((batch, result))

    def engine_ended(self, engine_id: int) -> None:
        self.has_ended.set()

    def submit(self, images: int = 1) -> None:
        waiter: Future[None] = Future()
        data = encoded()
        request = Request("held", 3, 1e9, waiter, images)
        self.scheduler.submit(request, [(place, data, validate(data)) for place in range(images)])

    def outcomes(self) -> list[Any]:
        result = self.delivered.get(timeout=10)[1]
        assert result is not None
        return result.outcomes


def test_failed_batch_is_that_batch_alone(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.start()
    rig.model.failure = RuntimeError("device lost")
    rig.submit(2)
    failed = rig.outcomes()
    assert [outcome.code for outcome in failed if isinstance(outcome, InferenceError)] == ["internal"] * 2
    assert "device lost" not in failed[0].message
    assert "a batch of 2 images failed" in caplog.text
    rig.model.failure = None
    rig.submit()
    assert isinstance(rig.outcomes()[0], Predictions)
    assert rig.engine.alive
    assert rig.engine.stop(10)


def test_images_that_wait_go_together() -> None:
    rig = Rig()
    rig.model.gate.clear()
    rig.start()
    rig.submit()
    rig.model.entered.acquire(timeout=10)
    for _ in range(3):
        rig.submit()
    rig.model.gate.set()
    assert [len(rig.outcomes()) for _ in range(2)] == [1, 3]
    assert rig.model.sizes == [1, 3]
    rig.engine.stop(10)


def test_liveness_allows_a_long_batch_but_not_an_endless_one() -> None:
    rig = Rig(stall_seconds=60)
    rig.model.gate.clear()
    rig.start()
    rig.prepared.result(10)
    rig.now = 1000
    assert rig.engine.alive  # idle is no silence
    rig.submit()
    rig.model.entered.acquire(timeout=10)
    rig.now = 1059
    assert rig.engine.alive
    assert rig.engine.silent_seconds() == 59
    rig.now = 1061
    assert not rig.engine.alive
    rig.model.gate.set()
    rig.outcomes()
    assert rig.engine.stop(10)
    assert not rig.engine.alive


def test_stop_finishes_what_waits() -> None:
    rig = Rig()
    rig.model.gate.clear()
    rig.start()
    for _ in range(6):
        rig.submit()
    rig.model.gate.set()
    assert rig.engine.stop(10)
    done = [rig.delivered.get_nowait()[1] for _ in range(rig.delivered.qsize())]
    assert sum(len(result.outcomes) for result in done if result) == 6


def test_stop_tells_when_the_engine_hangs() -> None:
    rig = Rig()
    rig.model.gate.clear()
    rig.start()
    rig.submit()
    rig.model.entered.acquire(timeout=10)
    assert not rig.engine.stop(0.01)
    rig.model.gate.set()
    assert rig.engine.stop(10)


def test_failed_preparation_is_told() -> None:
    def prepare() -> dict[str, Any]:
        raise ValueError("bundle x: bad hash")

    rig = Rig()
    rig.engine.start(prepare)
    with pytest.raises(ValueError, match="bad hash"):
        rig.prepared.result(10)
    assert rig.engine.stop(10)
    assert not rig.engine.alive
