"""EngineEvents: what an engine tells whoever runs it. All is called on the engine's threads; no method may block."""

from collections.abc import Sequence
from typing import Protocol

from ...inference.results import BatchResult
from ..scheduler.request import Batch, Request


class BatchEvents(Protocol):
    """What becomes of batches, and of models that were removed."""

    def batch_done(self, batch: Batch, result: BatchResult) -> None:
        """A batch is computed, or lost with an error for each of its images."""

    def requests_expired(self, requests: Sequence[Request]) -> None:
        """The time of these requests was over before they were computed."""

    def model_removed(self, engine_id: int, key: str) -> None:
        """The last batch of a removed model is done and its pipeline is closed."""


class StateEvents(Protocol):
    """How an engine begins and ends."""

    def ready(self, engine_id: int, error: BaseException | None) -> None:
        """The models are loaded and warm, or cannot be, for this reason."""

    def engine_ended(self, engine_id: int) -> None:
        """The engine computes nothing any more, for whatever reason; its models were loaded before."""


class EngineEvents(BatchEvents, StateEvents, Protocol):
    """Both."""
