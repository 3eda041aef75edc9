"""Tells by key which models engines have loaded, those on their way out among them, and which ones requests use."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..engine.engine import Engine
from ..repository.served_model import ServedModel
from ..scheduler.cost_model import CostModel


@dataclass(frozen=True)
class LoadedModel:
    """A model, its cost model on each engine, and the engines that have a pipeline of it."""

    model: ServedModel
    costs: list[CostModel]
    engine_ids: set[int]
    gone: "Future[None]" = field(default_factory=Future)  # resolved when no engine has it any more


class LoadedModels(dict[str, LoadedModel]):
    """The event loop and the engines' threads share it."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def add(self, model: ServedModel, engines: Sequence[Engine]) -> LoadedModel:
        """Enter a model that engines begin to compute."""
        costs = [model.cost_model(engine.engine_id, overlapped=engine.overlap) for engine in engines]
        loaded = self[model.key] = LoadedModel(model, costs, set(model.pipelines))
        return loaded

    def remove_engine(self, key: str, engine_id: int) -> None:
        """Note that an engine has closed its pipeline of a model."""
        loaded = self[key]
        with self._lock:
            loaded.engine_ids.discard(engine_id)
            gone = not loaded.engine_ids and not loaded.gone.done()
        if gone:
            loaded.gone.set_result(None)


class ModelLeases:
    """Counts the requests that use each model, by its key. Belongs to the event loop. `released`: called with a key
    when the last request that used it is over."""

    def __init__(self, released: Callable[[str], None]) -> None:
        self._requests: Counter[str] = Counter()
        self._released = released

    def __contains__(self, key: str) -> bool:
        return key in self._requests

    def __len__(self) -> int:
        return len(self._requests)

    @contextmanager
    def lease(self, key: str) -> Iterator[None]:
        """Count one more request that uses the model, while the block runs."""
        self._requests[key] += 1
        try:
            yield
        finally:
            self._requests[key] -= 1
            if not self._requests[key]:
                del self._requests[key]
                self._released(key)
