"""What waits: requests, their images, and the batches they are collected into."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ...inference.results import BatchResult, ImageResult
from ...loaders.headers.info import ImageInfo

Priority = Literal["interactive", "bulk"]
PRIORITIES: tuple[Priority, ...] = ("interactive", "bulk")


class Waiter(Protocol):
    """What wakes the request when its last result is in; an asyncio future is one."""

    def done(self) -> bool: ...

    def set_result(self, result: None) -> None: ...

    def set_exception(self, exception: BaseException) -> None: ...


class Request:
    """One request in the queue: its images, its deadline, and the places its results go to.

    Args:
        model: name of the model that shall answer.
        top_k: classes an answer.
        deadline: perf_counter seconds after which nobody wants the answer.
        waiter: resolved when every place has an outcome.
        places: number of images of the request, the ones already refused included.
        source: who asks, as far as anybody knows.
        priority: bulk waits for places that interactive requests leave, but never for ever.
    """

    __slots__ = (
        "deadline",
        "foretold",
        "last",
        "listener",
        "missing",
        "model",
        "outcomes",
        "priority",
        "source",
        "top_k",
        "waiter",
    )

    def __init__(
        self,
        model: str,
        top_k: int,
        deadline: float,
        waiter: Waiter,
        places: int,
        source: str | None = None,
        priority: Priority = "interactive",
    ) -> None:
        self.model = model
        self.top_k = top_k
        self.deadline = deadline
        self.waiter = waiter
        self.source = source
        self.priority = priority
        self.outcomes: list[ImageResult | None] = [None] * places
        self.missing = 0
        self.last: BatchResult | None = None  # the batch that completed it
        self.foretold: float | None = None  # perf_counter seconds at which the answer should be there
        self.listener: Callable[[int, ImageResult], None] | None = None  # hears of each outcome

    def put(self, place: int, outcome: ImageResult, result: BatchResult | None) -> None:
        """Store one outcome; wakes the waiter at the last one. Only the waiter's thread calls this."""
        self.outcomes[place] = outcome
        self.missing -= 1
        if self.listener is not None:
            self.listener(place, outcome)
        if not self.missing and not self.waiter.done():
            self.last = result
            self.waiter.set_result(None)

    def fail(self, error: Exception) -> None:
        """End the request with one error for all of it. Only the waiter's thread calls this."""
        if not self.waiter.done():
            self.waiter.set_exception(error)


@dataclass(slots=True, eq=False)
class QueuedImage:
    """One image of a ticket."""

    ticket: Request
    place: int
    data: bytes
    info: ImageInfo
    submitted: float = 0.0
    waits: bool = False  # others ran or waited when it came

    @property
    def pixels(self) -> int:
        """Decoded size, px."""
        return self.info.pixels


@dataclass(slots=True, eq=False)
class Batch:
    """Images of one model to compute together, and the requests found expired on the way."""

    model: str
    items: list[QueuedImage]
    release: str  # why it is not larger: full, captured, idle_device, drain
    expired: list[Request] = field(default_factory=list)
    engine: int = 0  # which one took it

    @property
    def pixels(self) -> int:
        """Decoded size of all, px."""
        return sum(item.pixels for item in self.items)
