"""Traces requests and hands their spans to the OpenTelemetry SDK, whose own thread sends them."""

import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from ...kernels.installation import install_command
from ..config.settings import OFF, Settings
from .context import RequestContext
from .families import counter
from .metrics import STAGES, package_version
from .trace_context import SpanIds, sample

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

logger = logging.getLogger("milkweed.tracing")

MAX_WAITING = 2048
"""So many requests may wait for the exporter; more are dropped."""

EXPORT_REQUESTS = 128
"""So many requests are sent together; each has up to ten spans."""

FLUSH_SECONDS = 3.0
"""The end of the process waits so long for a collector."""

_PATH = "/v1/traces"


class TracingError(ValueError):
    """Traces cannot be sent; the message is one line."""


class Tracer:
    """Traces the requests of a process. `begin` and `finish` belong to the event loop and never wait.

    Args:
        share: see `sample`.
        exporter: sends spans, blocking, on the SDK's thread.

    Raises:
        TracingError: the packages are missing.
    """

    def __init__(self, share: float, exporter: "SpanExporter") -> None:
        try:
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope

            from . import spans
        except ImportError as error:
            raise _missing(error) from None
        version = package_version()
        self._share = share
        self._make = spans.RequestSpan
        self._exporter = spans.StageExporter(exporter)
        self._resource = spans.server_resource(version)
        self._scope = InstrumentationScope("milkweed", version)
        self._processor = BatchSpanProcessor(
            self._exporter, max_queue_size=MAX_WAITING, max_export_batch_size=EXPORT_REQUESTS
        )
        self._handed = self._dropped = 0
        # This logger would quote a client's header in a line for each request.
        logging.getLogger("opentelemetry.trace.span").setLevel(logging.ERROR)
        self._exporter_log = logging.getLogger(type(exporter).__module__)
        self._once = spans.OncePerOutage(self._exporter)
        self._exporter_log.addFilter(self._once)

    @classmethod
    def of(cls, settings: Settings) -> "Tracer | None":
        """The tracer for the settings; None where they turn traces off. Raises TracingError where it cannot be made."""
        if settings.otlp_endpoint == OFF or os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            return None
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        except ImportError as error:
            raise _missing(error) from None
        base = settings.otlp_endpoint.rstrip("/")
        return cls(settings.trace_sample, OTLPSpanExporter(base if base.endswith(_PATH) else base + _PATH))

    def begin(self, headers: Iterable[tuple[bytes, bytes]]) -> SpanIds | None:
        """The ids of a request that is traced; None for any other."""
        return sample(headers, self._share)

    def finish(
        self, context: RequestContext, name: str, attributes: dict[str, str | int], end: float, status: int
    ) -> dict[str, str]:
        """Hand over the span of a traced request that is over; returns its exemplar for histograms.

        Args:
            name: the span's, from a closed set.
            attributes: what only the protocol knows.
            end: perf_counter seconds.
            status: HTTP's; 0 where nobody was answered.
        """
        assert context.span is not None
        exemplar = {"trace_id": context.span.trace_hex}
        if self._handed - self._exporter.taken >= MAX_WAITING:
            self._dropped += 1
            return exemplar
        self._handed += 1
        attributes["milkweed.request_id"] = context.request_id.decode()
        if context.images:
            attributes |= {"milkweed.model": context.model_name, "milkweed.images": context.images}
        code, failed = context.code, status >= 500
        if code is not None:
            attributes["milkweed.code"] = code
        if failed:
            attributes["error.type"] = code or str(status)
        span = self._make(
            name,
            context.span,
            times_ns=_unix_ns((context.started, *context.stages.ended(), end)),
            stages=STAGES,
            attributes=attributes,
            error=(code or "") if failed else None,
            resource=self._resource,
            instrumentation_scope=self._scope,
        )
        self._processor.on_end(span)
        return exemplar

    def close(self) -> None:
        """Send what waits; blocks for a bounded time."""
        self._exporter.close_soon()
        # The SDK's own end would wait half a minute for a collector that hangs.
        ending = threading.Thread(target=self._processor.shutdown, name="milkweed-traces-end", daemon=True)
        ending.start()
        ending.join(FLUSH_SECONDS)
        if ending.is_alive():
            logger.warning("the last traces were not sent within %g s", FLUSH_SECONDS)
            self._exporter.shutdown()  # gives up the retry for which its thread would wait
        else:
            self._exporter_log.removeFilter(self._once)

    def collect(self) -> Iterator[Metric]:
        """Count the traced requests by outcome, for the registry."""
        counts = {"exported": self._exporter.exported, "failed": self._exporter.failed, "dropped": self._dropped}
        text = "Traced requests by what became of their spans: exported, failed, dropped (too many waited)."
        yield counter("traced_requests", text, outcome=counts)


def _unix_ns(seconds: Sequence[float]) -> list[int]:
    """Turn perf_counter seconds into Unix time, all by one offset, so that there are still no gaps between them."""
    offset = time.time_ns() - time.perf_counter_ns()
    return [offset + int(second * 1e9) for second in seconds]


def _missing(error: ImportError) -> TracingError:
    return TracingError(
        "otlp_endpoint needs opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http: "
        f"{install_command('otel')} ({error})"
    )
