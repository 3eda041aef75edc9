"""What is known of one HTTP request while it is answered: its id, its clock, how it ended."""

import random
import re
import time
from typing import Any

from ..errors import ServiceError
from ..http.disconnect import Disconnect
from .metrics import STAGES, ModelMetrics
from .trace_context import SpanIds

SCOPE_KEY = "milkweed.trace"

# What may stand in a header, a JSON string and a log line as it is.
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@~-]{1,128}")

# Names as Server-Timing spells them, made once.
_TIMINGS = tuple(stage + ";dur=%.3f" for stage in STAGES[:-1])


def _new_id() -> bytes:
    """An id nobody else has. Not os.urandom: it gives the interpreter lock away and waits to get it back."""
    return b"%032x" % random.getrandbits(128)


class RequestContext:
    """One request. Stage ends are perf_counter seconds and meet without gaps: they add up."""

    __slots__ = (
        *("body_bytes", "code", "departure", "ends", "headers", "images", "model", "model_name", "notes"),
        *("request_id", "span", "started", "status"),
    )

    def __init__(self, headers: list[tuple[bytes, bytes]], departure: Disconnect | None = None) -> None:
        self.departure = departure  # where it is heard that the client has gone
        self.started = time.perf_counter()
        self.headers = dict(headers)
        given = self.headers.get(b"x-request-id", b"")
        self.request_id = given if _REQUEST_ID.fullmatch(given) else _new_id()
        self.ends: list[float] = []  # of STAGES in order, the last one excepted
        self.status = 0
        self.code: str | None = None  # the error that the whole request ended with
        self.model: ModelMetrics | None = None  # set once the request has passed every stage
        self.model_name = ""  # set with `images`, when they are about to be queued
        self.images = 0
        self.body_bytes = 0
        self.notes: dict[str, str] = {}  # what a layer adds: headers `x-NAME`, and fields of log line and span
        self.span: SpanIds | None = None  # set where the request is traced

    def mark(self) -> None:
        """The stage that runs ends now."""
        self.ends.append(time.perf_counter())

    def asks(self, model: str, images: int) -> None:
        """Which model gets how many images, those that were refused already among them."""
        self.model_name, self.images = model, images

    def server_timing(self) -> bytes:
        """The header: every finished stage and the total so far, ms."""
        previous = self.started
        parts = []
        for text, end in zip(_TIMINGS, self.ends, strict=False):
            parts.append(text % ((end - previous) * 1e3))
            previous = end
        now = time.perf_counter()
        parts.append(f"respond;dur={(now - previous) * 1e3:.3f}, total;dur={(now - self.started) * 1e3:.3f}")
        return ", ".join(parts).encode()

    def observe_stages(self, end: float) -> None:
        """Record the stages of a request that passed them all."""
        if self.model is None:
            return
        previous = self.started
        for child, stage_end in zip(self.model.stages, (*self.ends, end), strict=True):
            child.observe(stage_end - previous)
            previous = stage_end

    def stages_ms(self, end: float) -> dict[str, float]:
        """The finished stages, ms; `respond` only of a request that passed them all.

        Args:
            end: of the request, perf_counter seconds.
        """
        ends = [*self.ends, end] if len(self.ends) == len(STAGES) - 1 else self.ends
        starts = (self.started, *ends)
        return {stage: round((e - s) * 1e3, 3) for stage, s, e in zip(STAGES, starts, ends, strict=False)}

    def content_length(self) -> int | None:
        """The declared length of the body; None where there is none (chunked, or no body).

        Raises:
            ServiceError: `bad_request` when it is not a number.
        """
        text = self.headers.get(b"content-length")
        if text is None:
            return None
        if not text.isdigit() or len(text) > 18:
            raise ServiceError("bad_request", "Content-Length is not a number", close=True)
        return int(text)


def context_of(scope: Any) -> RequestContext:
    """The trace that the middleware put into a scope."""
    trace: RequestContext = scope[SCOPE_KEY]
    return trace
