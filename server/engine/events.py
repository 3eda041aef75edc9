"""EngineEvents: what an engine tells whoever runs it."""

from typing import Protocol

from ...inference.results import BatchResult
from ..scheduler.request import Batch


class EngineEvents(Protocol):
    """Called on the engine's threads; no method may block."""

    def ready(self, engine_id: int, error: BaseException | None) -> None:
        """The models are loaded and warm, or cannot be, for this reason."""

    def batch_done(self, batch: Batch, result: BatchResult | None) -> None:
        """A batch is computed; `result` is None where its requests have expired and nothing was computed."""

    def model_removed(self, engine_id: int, key: str) -> None:
        """The last batch of a removed model is done and its pipeline is closed."""

    def engine_ended(self, engine_id: int) -> None:
        """The engine computes nothing any more, for whatever reason; its models were loaded before."""
