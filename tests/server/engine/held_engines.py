"""Two engines that a test holds still, one batch each in hand."""

import asyncio
from collections import Counter
from typing import Any

from ...support.server_parts import Held, encoded, entered, until

TWO = {"device": "cpu,cpu", "max_batch_size": 4}


class HeldEngine(Held):
    """Stands before one engine's decoder and forward: holds its forwards, and lets either fail."""

    def __init__(self, app: Any, engine_id: int = 0, name: str = "held") -> None:
        super().__init__()
        self.pipeline = app.service.models[name].pipelines[engine_id]
        loader, forward = self.pipeline.loader, self.pipeline.forward_stage
        self._load, self._run, self._close = loader.load, forward.run, self.pipeline.close
        loader.load, forward.run, self.pipeline.close = self.load, self.run, self.close
        self.load_failure: BaseException | None = None
        self.closed = 0

    def load(self, items: Any, infos: Any = None, sources: Any = None) -> Any:
        if self.load_failure is not None:
            raise self.load_failure
        return self._load(items, infos, sources)

    def run(self, pixels: Any) -> Any:
        self.hold(len(pixels))
        return self._run(pixels)

    def close(self) -> None:
        self.closed += 1
        self._close()


def both(app: Any) -> tuple[HeldEngine, HeldEngine]:
    return HeldEngine(app, 0), HeldEngine(app, 1)


def post(app: Any, seed: int = 0) -> "asyncio.Task[Any]":
    return app.begin(encoded(seed=seed))


async def one_in_each(app: Any, first: HeldEngine, second: HeldEngine) -> "list[asyncio.Task[Any]]":
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
