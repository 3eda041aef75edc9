"""Requests in the queue, their images, and the batches that these are taken into."""

import asyncio
import math
from collections.abc import Callable, Hashable
from dataclasses import InitVar, dataclass, field
from typing import Literal, Protocol

from ...inference.results import BatchResult, ImageResult, TopClasses
from ...loaders.headers.info import ImageInfo
from ..errors import ClientDisconnected, ServiceError

Priority = Literal["interactive", "bulk"]
PRIORITIES: tuple[Priority, ...] = ("interactive", "bulk")

BULK_DELAY_SECONDS = 2.0
"""Bulk images wait so long behind interactive ones; from then on they wait their turn like these: nobody starves."""

_LABELS = {"internal": "error", "overloaded": "rejected", "draining": "rejected", "deadline": "expired"}


Outcome = ImageResult | ServiceError
"""What becomes of an image of a request: the engine's result, or a refusal before it got there."""

Listener = Callable[[int, Outcome], None]
"""Hears of the outcome of each image, by its index in the request."""


class Waiter(Protocol):
    """Wakes whoever waits for a request when its last result is in; an asyncio future is one."""

    def done(self) -> bool: ...

    def set_result(self, result: None) -> None: ...

    def set_exception(self, exception: BaseException) -> None: ...


@dataclass(slots=True, eq=False)
class Request:
    """One request in the queue: its deadline, and a place for the result of each of its images."""

    model: str  # the key of the model that shall answer
    top_k: int  # number of classes in each answer
    deadline: float  # perf_counter seconds after which nobody wants the answer
    waiter: Waiter  # resolved when every image has an outcome
    num_images: InitVar[int]  # images of the request, including those that were refused already
    caller: str | None = None  # the API key's name or the client's address, as far as it is known
    priority: Priority = "interactive"  # bulk requests take what interactive ones leave, but never wait for ever
    flow: Hashable = None  # takes turns with other flows, an image each
    listener: Listener | None = None
    embeds: bool = False  # answers have embeddings
    shadow: bool = False  # no client waits for it: it goes behind all others, and takes no place of theirs
    sampled: dict[int, list[Callable[[TopClasses], None]]] = field(default_factory=dict)
    """What takes the answer of an image, by its index, with the distribution, once the request is answered."""
    outcomes: list[Outcome | None] = field(init=False)
    pending: int = field(default=0, init=False)  # images without an outcome
    last: BatchResult | None = field(default=None, init=False)  # the batch that completed it
    expected_finish: float | None = field(default=None, init=False)  # perf_counter seconds when it should be answered

    def __post_init__(self, num_images: int) -> None:
        self.outcomes = [None] * num_images

    def store(self, index: int, outcome: Outcome) -> None:
        """Store the outcome of one image. Only the waiter's thread calls this."""
        self.outcomes[index] = outcome
        if self.listener is not None:
            self.listener(index, outcome)

    def set_result(self, index: int, outcome: Outcome, result: BatchResult | None) -> None:
        """Store the outcome of a queued image; the last one wakes the waiter. Only the waiter's thread calls this."""
        self.store(index, outcome)
        self.pending -= 1
        if not self.pending and not self.waiter.done():
            self.last = result
            self.waiter.set_result(None)

    def fail(self, error: Exception) -> None:
        """End the request with one error for all of its images. Only the waiter's thread calls this."""
        if not self.waiter.done():
            self.waiter.set_exception(error)


@dataclass(slots=True, eq=False)
class QueuedImage:
    """One image of a request; `index` is its place there."""

    request: Request
    index: int
    data: bytes
    info: ImageInfo
    submitted: float = 0.0
    waits: bool = False  # others ran or waited when it came
    turn: int = 0

    @property
    def pixels(self) -> int:
        """Decoded size, px."""
        return self.info.pixels

    @property
    def due(self) -> float:
        """perf_counter seconds; interactive images that come until then go before it, whatever their model."""
        if self.request.priority == "interactive":
            return self.submitted
        return math.inf if self.request.shadow else self.submitted + BULK_DELAY_SECONDS


@dataclass(slots=True, eq=False)
class Batch:
    """Images of one model to compute together; none where only expired requests were found."""

    model: str
    engine_id: int  # of the engine that took it
    items: list[QueuedImage]
    reason: str  # why it is not larger: full, captured, idle_device, drain
    expired: list[Request]  # requests whose time was found to be over when it was taken

    @property
    def pixels(self) -> int:
        """Decoded size of all images, px."""
        return sum(item.pixels for item in self.items)


@dataclass(frozen=True, slots=True)
class RemovedModel:
    """Tells an engine that no batch of a model, by its key, will come any more."""

    key: str


def outcome_label(outcome: object) -> str:
    """The label, one of `metrics.OUTCOMES`, of how an image ended, or the request that it was in."""
    if isinstance(outcome, TopClasses):
        return "ok"
    if isinstance(outcome, ClientDisconnected):
        return "cancelled"
    if isinstance(outcome, TimeoutError | asyncio.CancelledError):
        return "expired"
    return _LABELS.get(getattr(outcome, "code", "internal"), "invalid")
