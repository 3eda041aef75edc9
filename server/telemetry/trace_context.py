"""Reads W3C Trace Context from the headers of a request, and decides which requests are traced."""

import random
import re
from collections.abc import Iterable
from contextvars import ContextVar
from typing import NamedTuple

# Version, trace, parent, flags; a later version may have more after them.
_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")

_SAMPLED = 1

# The standard asks to keep at least so much of a tracestate; a longer one is dropped.
MAX_STATE_BYTES = 512


class SpanIds(NamedTuple):
    """The ids of a traced request.

    Args:
        parent_id: the caller's span; 0 where the trace begins here.
        state: the caller's tracestate, unparsed.
    """

    trace_id: int
    span_id: int
    parent_id: int = 0
    state: bytes = b""

    @property
    def trace_hex(self) -> str:
        """The trace's id as 32 hex digits."""
        return f"{self.trace_id:032x}"

    @property
    def response_header(self) -> tuple[bytes, bytes]:
        """The `traceresponse` header, by which a client finds the trace (Trace Context level 2)."""
        return b"traceresponse", b"00-%032x-%016x-01" % (self.trace_id, self.span_id)


current_span: ContextVar[SpanIds | None] = ContextVar("milkweed_span", default=None)
"""The span of the request that the running task answers; log lines take their trace id from it."""


def sample(headers: Iterable[tuple[bytes, bytes]], share: float) -> SpanIds | None:
    """The ids of a request that is traced, as its caller decided; None for any other.

    Args:
        headers: names in lower case.
        share: this part of the requests whose caller decided nothing is traced, at random; 0 to 1.
    """
    traceparent, state = b"", b""
    for name, value in headers:
        if name == b"traceparent":
            traceparent = value
        elif name == b"tracestate":
            state = state + b"," + value if state else value
    parent = _parent(traceparent) if traceparent else None
    if parent is None:  # none, or an invalid one: the trace begins here
        # Not os.urandom: it gives the interpreter lock away and waits to get it back.
        return SpanIds(_random(128), _random(64)) if random.random() < share else None
    trace_id, parent_id, sampled = parent
    if not sampled:
        return None
    return SpanIds(trace_id, _random(64), parent_id, state if len(state) <= MAX_STATE_BYTES else b"")


def _parent(text: bytes) -> tuple[int, int, bool] | None:
    """Trace, span and sampling decision of a traceparent; None where it is not valid."""
    match = _TRACEPARENT.fullmatch(text.strip(b" \t"))
    if match is None:
        return None
    version, trace, span, flags, more = match.groups()
    if version == b"ff" or (version == b"00" and more is not None):
        return None
    trace_id, span_id = int(trace, 16), int(span, 16)
    return (trace_id, span_id, bool(int(flags, 16) & _SAMPLED)) if trace_id and span_id else None


def _random(bits: int) -> int:
    """A random id, never 0, which stands for none."""
    return random.getrandbits(bits) or 1
