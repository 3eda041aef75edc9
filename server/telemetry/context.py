"""What is known of one request while it is answered: its id, its caller, its stages, how it ended."""

import random
import re
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import ServiceError
from .metrics import STAGES, ModelMetrics
from .trace_context import SpanIds

SCOPE_KEY = "milkweed.context"
"""Where a request's scope holds its RequestContext."""

DISCONNECT_KEY = "milkweed.disconnect"
"""Where a request's scope holds the Disconnect of its connection."""

# What may stand in a header, a JSON string and a log line as it is.
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@~-]{1,128}")

# Names as Server-Timing spells them, made once.
_TIMINGS = tuple(stage + ";dur=%.3f" for stage in STAGES[:-1])


class Disconnect:
    """Tells whoever waits for an answer that the client is gone. A connection makes one for each request."""

    __slots__ = ("_listener", "gone")

    def __init__(self) -> None:
        self.gone = False
        self._listener: Callable[[], None] | None = None

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Call `listener` once the client is gone, or at once if it is already; None ends the listening."""
        self._listener = listener
        if self.gone and listener is not None:
            listener()

    def happen(self) -> None:
        """The connection is gone."""
        self.gone = True
        if self._listener is not None:
            self._listener()


@dataclass(slots=True)
class Stages:
    """When each stage of a request ended, perf_counter seconds; 0 before that.

    Stages end in this order. Each begins where the one before it ended, so that they add up; the last of `STAGES`,
    `respond`, ends with the request.
    """

    receive: float = 0.0
    fetch: float = 0.0  # stays 0 where no image came by URL: it then ends as it begins
    parse: float = 0.0
    queue: float = 0.0
    decode: float = 0.0
    ready: float = 0.0
    forward: float = 0.0
    postprocess: float = 0.0
    deliver: float = 0.0

    def ended(self) -> tuple[float, ...]:
        """The ends of those that have ended, in order."""
        ends = (
            *(self.receive, self.parse and (self.fetch or self.receive), self.parse, self.queue, self.decode),
            *(self.ready, self.forward, self.postprocess, self.deliver),
        )
        return ends[: ends.index(0.0)] if 0.0 in ends else ends


class RequestContext:
    """One request of any protocol.

    Args:
        headers: names in lower case.
        disconnect: tells that the client is gone, where the connection can.
    """

    __slots__ = (
        *("body_bytes", "caller", "code", "disconnect", "flow", "headers", "images", "model_metrics", "model_name"),
        *("request_id", "span", "stages", "started", "status"),
    )

    def __init__(self, headers: list[tuple[bytes, bytes]], disconnect: Disconnect | None = None) -> None:
        self.disconnect = disconnect
        self.started = time.perf_counter()
        self.headers = dict(headers)
        request_id = self.headers.get(b"x-request-id", b"")
        self.request_id = request_id if _REQUEST_ID.fullmatch(request_id) else _new_id()
        self.caller: str | None = None  # the name that came with the key, else the address; None where neither is known
        self.flow: Hashable = None  # the name that came with the key, else the connection
        self.stages = Stages()
        self.status = 0
        self.code: str | None = None  # the error that the whole request ended with
        self.model_metrics: ModelMetrics | None = None  # set once the request has passed every stage
        self.model_name = ""  # set with `images`, when they are about to be queued
        self.images = 0
        self.body_bytes = 0
        self.span: SpanIds | None = None  # set where the request is traced

    def end_stage(self, stage: Literal["receive", "parse", "deliver"]) -> None:
        """A stage outside the engine ends now; the engine writes down its own."""
        setattr(self.stages, stage, time.perf_counter())

    def note_fetch(self, seconds: float) -> None:
        """Images came by URL within `seconds`. What had to be parsed to know of them counts as parse, which is later:
        a stage has its right length, and not quite its place."""
        self.stages.fetch = self.stages.receive + seconds

    def note_request(self, model: str, images: int) -> None:
        """Write down which model gets how many images, with those that were refused already."""
        self.model_name, self.images = model, images

    def server_timing(self) -> bytes:
        """The header: every finished stage and the total so far, ms."""
        previous = self.started
        parts = []
        for text, end in zip(_TIMINGS, self.stages.ended(), strict=False):
            parts.append(text % ((end - previous) * 1e3))
            previous = end
        now = time.perf_counter()
        parts.append(f"respond;dur={(now - previous) * 1e3:.3f}, total;dur={(now - self.started) * 1e3:.3f}")
        return ", ".join(parts).encode()

    def observe_stages(self, end: float) -> None:
        """Record the stages of a request that passed them all."""
        if self.model_metrics is None:
            return
        previous = self.started
        for child, stage_end in zip(self.model_metrics.stages, (*self.stages.ended(), end), strict=True):
            child.observe(stage_end - previous)
            previous = stage_end

    def stages_ms(self, end: float) -> dict[str, float]:
        """The finished stages, ms; `respond` only of a request that passed them all. `end`: of the request,
        perf_counter seconds."""
        ends = self.stages.ended()
        if len(ends) == len(STAGES) - 1:
            ends = (*ends, end)
        starts = (self.started, *ends)
        return {stage: round((e - s) * 1e3, 3) for stage, s, e in zip(STAGES, starts, ends, strict=False)}

    def content_length(self) -> int | None:
        """The declared length of the body; None where there is none (chunked, or no body). Raises ServiceError
        `bad_request` when it is not a number."""
        text = self.headers.get(b"content-length")
        if text is None:
            return None
        if not text.isdigit() or len(text) > 18:
            raise ServiceError("bad_request", "Content-Length is not a number", close=True)
        return int(text)


def context_of(scope: Any) -> RequestContext:
    """The context that the middleware put into a scope."""
    context: RequestContext = scope[SCOPE_KEY]
    return context


def _new_id() -> bytes:
    """An id nobody else has. Not os.urandom: it gives the interpreter lock away and waits to get it back."""
    return b"%032x" % random.getrandbits(128)
