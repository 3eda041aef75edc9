"""Two engines that a test holds still, one batch each in hand."""

import asyncio
import threading
from collections import Counter
from typing import Any

from .server_parts import encoded, entered, until

TWO = {"device": "cpu,cpu", "max_batch_size": 4}


class Held:
    """Stands before one engine's decoder and forward: holds them still, lets them fail, counts their batches."""

    def __init__(self, app: Any, engine_id: int, name: str = "held") -> None:
        self.pipeline = app.service.models[name].pipelines[engine_id]
        loader, forward = self.pipeline.loader, self.pipeline.forward_stage
        self._load, self._run, self._close = loader.load, forward.run, self.pipeline.close
        loader.load, forward.run, self.pipeline.close = self.load, self.run, self.close
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.sizes: list[int] = []
        self.load_failure: BaseException | None = None
        self.failure: BaseException | None = None
        self.closed = 0

    def load(self, items: Any, infos: Any = None, sources: Any = None) -> Any:
        self.sizes.append(len(items))
        if self.load_failure is not None:
            raise self.load_failure
        return self._load(items, infos, sources)

    def run(self, pixels: Any) -> Any:
        self.entered.release()
        assert self.gate.wait(10), "nobody opened the gate"
        if self.failure is not None:
            raise self.failure
        return self._run(pixels)

    def close(self) -> None:
        self.closed += 1
        self._close()


def both(app: Any) -> tuple[Held, Held]:
    return Held(app, 0), Held(app, 1)


def post(app: Any, seed: int = 0) -> "asyncio.Task[Any]":
    return app.begin(encoded(seed=seed))


async def one_in_each(app: Any, first: Held, second: Held) -> "list[asyncio.Task[Any]]":
    """Requests whose forwards have begun, one on each engine; both gates are closed."""
    await until(lambda: all(slot.waiting for slot in app.service.scheduler._engines))
    first.gate.clear()
    second.gate.clear()
    tasks = [post(app)]
    await until(lambda: len(first.sizes) + len(second.sizes) == 1)
    tasks.append(post(app, 1))
    await entered(first)
    await entered(second)  # though the other is not done
    assert first.sizes == second.sizes == [1]
    return tasks


async def statuses(tasks: "list[asyncio.Task[Any]]") -> Counter[int]:
    return Counter([(await task).status_code for task in tasks])
