"""LoadedModels: every model that an engine has loaded, those on their way out among them, by key."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
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


class LoadedModels:
    """The event loop and the engines' threads share it."""

    def __init__(self) -> None:
        self._models: dict[str, LoadedModel] = {}
        self._lock = threading.Lock()

    def __getitem__(self, key: str) -> LoadedModel:
        return self._models[key]

    def __contains__(self, key: str) -> bool:
        return key in self._models

    def __len__(self) -> int:
        return len(self._models)

    def add(self, model: ServedModel, engines: Sequence[Engine]) -> LoadedModel:
        """Enter a model that engines begin to compute."""
        costs = [model.cost_model(engine.engine_id, overlapped=engine.overlap) for engine in engines]
        loaded = self._models[model.key] = LoadedModel(model, costs, set(model.pipelines))
        return loaded

    def remove_engine(self, key: str, engine_id: int) -> None:
        """Note that an engine has closed its pipeline of a model."""
        loaded = self._models[key]
        with self._lock:
            loaded.engine_ids.discard(engine_id)
            gone = not loaded.engine_ids and not loaded.gone.done()
        if gone:
            loaded.gone.set_result(None)

    def pop(self, key: str) -> ServedModel:
        """Forget a model that no engine has."""
        return self._models.pop(key).model
