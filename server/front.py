"""Front: what whoever speaks a protocol needs of the service, wherever its engine runs; and the life of both."""

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager

from ..loaders.info import ImageInfo
from .body import HeldBytes
from .cache import ResponseCache
from .card import ModelCard
from .catalogue import Catalogue
from .errors import ServiceError
from .metrics import Metrics
from .settings import Settings
from .statistics import ModelStatistics
from .ticket import Priority, Ticket

LAG_TICK_SECONDS = 0.1


class Front(ABC):
    """Belongs to the event loop."""

    def __init__(self, settings: Settings, metrics: Metrics, held: HeldBytes) -> None:
        self.settings, self.metrics, self.held = settings, metrics, held
        self.draining = False
        self._accepting = True
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lag_timer: asyncio.TimerHandle | None = None
        self._lag = self._due = 0.0
        self._tickets: set[Ticket] = set()
        self.cache = ResponseCache.of(settings, metrics)
        metrics.held_bytes.set_function(lambda: held.total)

    @property
    @abstractmethod
    def models(self) -> Catalogue[ModelCard]:
        """What is served now."""

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """Of the models that were asked for at the start, also while they load."""

    @abstractmethod
    def using(self, model: ModelCard) -> AbstractContextManager[None]:
        """Within, a model is in a request's hands and is not let go."""

    @abstractmethod
    def submit(self, ticket: Ticket, images: Sequence[tuple[int, bytes, ImageInfo]]) -> None:
        """Queue a request: all of its images or none.

        Raises:
            ServiceError: `overloaded` with an estimate of when there is room, `draining`. Where the engine is in
                another process the ticket fails with it instead.
        """

    @abstractmethod
    async def accepted(self, ticket: Ticket) -> None:
        """Wait until a submitted request is queued; raises what `submit` could not yet know."""

    @abstractmethod
    def forget(self, ticket: Ticket) -> None:
        """A request is over, answered or not; what of it still waits is dropped."""

    @abstractmethod
    def wait_seconds(self, priority: Priority = "bulk") -> float:
        """When what runs now and waits before a request that came now should be done."""

    @abstractmethod
    def check_engine(self) -> None:
        """Raises ServiceError `not_ready` where no request can be answered now."""

    @abstractmethod
    def check_alive(self) -> None:
        """Raises ServiceError where only a restart of the process can help."""

    @abstractmethod
    async def exposition(self, accept: str) -> tuple[bytes, str]:
        """The metrics of all processes as text, and its content type.

        Args:
            accept: header of the scrape; OpenMetrics where it asks for that.
        """

    @abstractmethod
    async def statistics(self) -> dict[str, ModelStatistics]:
        """What each model has answered."""

    def check_accepting(self) -> None:
        """Raises ServiceError `not_ready` or `draining` where a request cannot be taken."""
        if not self._accepting:
            raise ServiceError("draining", "the server is shutting down", retry_after_seconds=1, close=True)
        if not self.models:
            raise ServiceError("not_ready", "the models are loading", retry_after_seconds=1)
        self.check_engine()

    def check_ready(self) -> None:
        """Raises ServiceError where no new traffic should be routed here."""
        if self.draining:
            raise ServiceError("draining", "the server is shutting down", retry_after_seconds=1)
        self.check_accepting()

    def check_time(self, timeout_seconds: float, priority: Priority) -> None:
        """Raises ServiceError `overloaded` where a request is late already, before any of it is read."""
        # With a cache, what it knows need not wait; the queue refuses the rest.
        late = 2 * self.lag_seconds() + (self.wait_seconds(priority) if self.cache is None else 0.0)
        if late > timeout_seconds:
            raise ServiceError(
                "overloaded",
                f"what is before this request takes {late * 1e3:.0f} ms, it may take {timeout_seconds * 1e3:.0f} ms",
                retry_after_seconds=self.retry_after_seconds(),
            )

    def retry_after_seconds(self) -> int:
        """When what runs and waits now should be done."""
        return max(1, min(60, math.ceil(self.wait_seconds())))

    def begin_drain(self) -> None:
        """Say not ready, but go on: whoever routes requests here needs a moment to hear of it."""
        self.draining = True

    def stop_accepting(self) -> None:
        """Refuse new requests; those in flight go on."""
        self.draining = True
        self._accepting = False

    def abandon(self) -> None:
        """Fail every request in flight: the time to drain is over."""
        self.fail_all(ServiceError("draining", "the server stopped before the answer", retry_after_seconds=1))

    def fail_all(self, error: ServiceError) -> None:
        """Answer every request in flight with one error."""
        for ticket in list(self._tickets):
            ticket.fail(error)

    def lag_seconds(self) -> float:
        """How late the event loop is: so long a request has waited before it was seen, and its answer will again."""
        overdue = self._loop.time() - self._due if self._loop is not None and self._due else 0.0
        return max(self._lag, overdue)

    def begin_ticking(self) -> None:
        """Watch how late the running event loop is, from now on."""
        self._loop = asyncio.get_running_loop()
        self._tick(self._loop.time())

    def end_ticking(self) -> None:
        """Watch it no more."""
        if self._lag_timer is not None:
            self._lag_timer.cancel()

    def _tick(self, due: float) -> None:
        """On a timer of its own."""
        assert self._loop is not None
        now = self._loop.time()
        self._lag = max(0.0, now - due)
        self.metrics.loop_lag.observe(self._lag)
        self._due = due = now + LAG_TICK_SECONDS
        self._lag_timer = self._loop.call_at(due, self._tick, due)
