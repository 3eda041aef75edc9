"""Makes OpenTelemetry spans of requests. Imported only where traces are on, since it needs the extra `otel`."""

import logging
import random
from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.trace.status import Status, StatusCode

from .trace_context import SpanIds

logger = logging.getLogger("milkweed.tracing")

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_UNSET = Status(StatusCode.UNSET)
_MAX_MEMBERS = 32  # in a tracestate; for more the library would log a line for each request


class RequestSpan(ReadableSpan):
    """The span of a request. The spans of its stages are made on the exporter's thread, not on the event loop.

    Args:
        times_ns: Unix times of its start, of the ends of its finished stages, of its end.
        stages: names of all stages, in order.
        error: describes a failure of the server; None where there was none.
        more: further arguments of ReadableSpan.
    """

    def __init__(
        self, name: str, ids: SpanIds, *, times_ns: Sequence[int], stages: Sequence[str], error: str | None, **more: Any
    ) -> None:
        state = _state(ids.state)
        parent = SpanContext(ids.trace_id, ids.parent_id, True, _SAMPLED, state) if ids.parent_id else None
        super().__init__(
            name,
            SpanContext(ids.trace_id, ids.span_id, False, _SAMPLED, state),
            parent,
            kind=SpanKind.SERVER,
            status=_UNSET if error is None else Status(StatusCode.ERROR, error),
            start_time=times_ns[0],
            end_time=times_ns[-1],
            **more,
        )
        self._times, self._stages = times_ns, stages

    def with_stages(self) -> list[ReadableSpan]:
        """This span and one for each stage, which meet without gaps."""
        # The stage in which a request was refused has not finished: it has no span.
        whole = len(self._times) == len(self._stages) + 1
        ends = self._times[1:] if whole else self._times[1:-1]
        spans: list[ReadableSpan] = [self]
        start = self._times[0]
        context = self.context
        for stage, end in zip(self._stages, ends, strict=False):
            spans.append(
                ReadableSpan(
                    stage,
                    SpanContext(context.trace_id, random.getrandbits(64) or 1, False, _SAMPLED, context.trace_state),
                    context,
                    self.resource,
                    start_time=start,
                    end_time=end,
                    instrumentation_scope=self.instrumentation_scope,
                )
            )
            start = end
        return spans


class StageExporter(SpanExporter):
    """Exports requests with the spans of their stages, and counts the requests. Belongs to the SDK's thread.
    `exporter`: sends the spans."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._closing = False
        self.exported = self.failed = 0
        self.failing = False
        """Whether the newest batch was lost."""

    @property
    def taken(self) -> int:
        """How many requests wait no more."""
        return self.exported + self.failed

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch of requests."""
        result = SpanExportResult.FAILURE
        # The end of a process does not wait for a collector that was missing before.
        if not (self._closing and self.failing):
            try:
                requests = [span for span in spans if isinstance(span, RequestSpan)]
                result = self._exporter.export([span for request in requests for span in request.with_stages()])
            except Exception:
                logger.exception("traces cannot be exported")
        self.failing = result is not SpanExportResult.SUCCESS
        if self.failing:
            self.failed += len(spans)
        else:
            self.exported += len(spans)
        return result

    def close_soon(self) -> None:
        """Export what waits, unless the collector is failing: the process ends."""
        self._closing = True

    def shutdown(self) -> None:
        """Export no more, and give up a retry that waits."""
        self._exporter.shutdown()


class OncePerOutage(logging.Filter):
    """Lets one log line of the exporter through for each outage, where it would write several a minute."""

    def __init__(self, exporter: StageExporter) -> None:
        super().__init__()
        self._exporter = exporter
        self._told_at = -1

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this is the first line since an export succeeded."""
        said, self._told_at = self._told_at, self._exporter.exported
        return said != self._told_at


def server_resource(version: str) -> Resource:
    """The sender of the spans: from OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, else our name and version."""
    said = Resource.create()
    ours: dict[str, str] = {}
    if str(said.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        ours[SERVICE_NAME] = "milkweed"
    if SERVICE_VERSION not in said.attributes:
        ours[SERVICE_VERSION] = version
    return said.merge(Resource(ours))


def _state(text: bytes) -> TraceState | None:
    if not text or text.count(b",") >= _MAX_MEMBERS:
        return None
    return TraceState.from_header([text.decode("latin-1")])
