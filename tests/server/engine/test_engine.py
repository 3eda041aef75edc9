"""The engine thread: failures stay in their batch, liveness tells the truth, stopping drains."""

import queue
from concurrent.futures import Future
from typing import Any

import pytest

from milkweed.inference.results import BatchResult, Predictions
from milkweed.loaders.headers.validate import validate
from milkweed.server.engine.engine import Engine
from milkweed.server.errors import ServiceError
from milkweed.server.scheduler.cost_model import CostModel
from milkweed.server.scheduler.request import Batch, Request
from milkweed.server.scheduler.scheduler import Scheduler

from ...support import server_parts


class Rig:
    """An engine over one held model; deliveries come out of a queue."""

    def __init__(self, stall_seconds: float = 60.0) -> None:
        self.kit = kit
        self.now = 0.0
        self.model = server_parts.HeldModel()
        self.batcher = Scheduler(max_queue_images=100, clock=lambda: self.now)
        self.batcher.add_model("held", max_batch_pixels=10**9, costs=[CostModel((), 4)])
        self.delivered: queue.Queue[tuple[Batch, BatchResult | None]] = queue.Queue()
        self.engine = Engine(
            self.batcher,
            prepare=lambda: {"held": server_parts.make_pipeline(self.model)},
            deliver=lambda batch, result: self.delivered.put((batch, result)),
            stall_seconds=stall_seconds,
            clock=lambda: self.now,
        )

    def submit(self, images: int = 1) -> None:
        waiter: Future[None] = Future()
        data = self.server_parts.encoded()
        ticket = Request("held", 3, 1e9, waiter, images)
        self.batcher.submit(ticket, [(place, data, validate(data)) for place in range(images)])

    def outcomes(self) -> list[Any]:
        result = self.delivered.get(timeout=10)[1]
        assert result is not None
        return result.outcomes


def test_failed_batch_is_that_batch_alone(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.engine.start()
    rig.model.failure = RuntimeError("device lost")
    rig.submit(2)
    failed = rig.outcomes()
    assert [outcome.code for outcome in failed if isinstance(outcome, ServiceError)] == ["internal"] * 2
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
    rig.engine.start()
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
    rig.engine.start()
    rig.engine.prepared.result(10)
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
    rig.engine.start()
    for _ in range(6):
        rig.submit()
    rig.model.gate.set()
    assert rig.engine.stop(10)
    done = [rig.delivered.get_nowait()[1] for _ in range(rig.delivered.qsize())]
    assert sum(len(result.outcomes) for result in done if result) == 6


def test_stop_tells_when_the_engine_hangs() -> None:
    rig = Rig()
    rig.model.gate.clear()
    rig.engine.start()
    rig.submit()
    rig.model.entered.acquire(timeout=10)
    assert not rig.engine.stop(0.01)
    rig.model.gate.set()
    assert rig.engine.stop(10)


def test_failed_preparation_is_told() -> None:
    def prepare() -> dict[str, Any]:
        raise ValueError("bundle x: bad hash")

    engine = Engine(Scheduler(max_queue_images=1), prepare=prepare, deliver=lambda batch, result: None)
    engine.start()
    with pytest.raises(ValueError, match="bad hash"):
        engine.prepared.result(10)
    assert engine.stop(10)
    assert not engine.alive
