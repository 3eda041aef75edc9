"""Follows requests and hands their spans to the OpenTelemetry SDK, whose own thread sends them."""

import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, Metric

from ..config.settings import OFF, Settings
from .context import RequestContext
from .metrics import STAGES, package_version
from .trace_context import Sampler, SpanIds

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

logger = logging.getLogger("milkweed.tracing")

MAX_WAITING = 2048
"""Requests that wait for the exporter; more are not traced."""

EXPORT_REQUESTS = 128
"""A batch that is sent; each request has up to ten spans."""

FLUSH_SECONDS = 3.0
"""At the end of the process a collector may take so long."""

_PATH = "/v1/traces"


class TracingError(ValueError):
    """Traces cannot be sent; the message is one line."""


class Tracer:
    """One a process. `begin` and `finish` belong to the event loop and never wait.

    Args:
        share: see `Sampler`.
        exporter: sends spans; blocking, on the SDK's thread.

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
        self._sampler = Sampler(share)
        self._make = spans.RequestSpan
        self._exporter = spans.StageExporter(exporter)
        self._resource = spans.server_resource(version)
        self._scope = InstrumentationScope("milkweed", version)
        self._processor = BatchSpanProcessor(
            self._exporter, max_queue_size=MAX_WAITING, max_export_batch_size=EXPORT_REQUESTS
        )
        self._handed = self._dropped = 0
        # It would quote a client's header in a line for each request.
        logging.getLogger("opentelemetry.trace.span").setLevel(logging.ERROR)
        self._senders_words = logging.getLogger(type(exporter).__module__)
        self._once = spans.OncePerOutage(self._exporter)
        self._senders_words.addFilter(self._once)

    @classmethod
    def of(cls, settings: Settings) -> "Tracer | None":
        """The tracer that the settings ask for; None where they ask for none.

        Raises:
            TracingError: it cannot be made.
        """
        if settings.otlp_endpoint == OFF or os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            return None
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        except ImportError as error:
            raise _missing(error) from None
        base = settings.otlp_endpoint.rstrip("/")
        return cls(settings.trace_sample, OTLPSpanExporter(base if base.endswith(_PATH) else base + _PATH))

    def begin(self, headers: Iterable[tuple[bytes, bytes]]) -> SpanIds | None:
        """The ids of a request that is followed; None of any other."""
        return self._sampler.follow(headers)

    def finish(
        self, trace: RequestContext, name: str, attributes: dict[str, str | int], end: float, status: int
    ) -> dict[str, str]:
        """A followed request is over; what marks its observations in a histogram (an exemplar).

        Args:
            name: of the span, from a closed set.
            attributes: what only the protocol knows.
            end: perf_counter seconds.
            status: of HTTP; 0 where nobody was answered.
        """
        assert trace.span is not None
        exemplar = {"trace_id": trace.span.trace_hex}
        if self._handed - self._exporter.taken >= MAX_WAITING:
            self._dropped += 1
            return exemplar
        self._handed += 1
        attributes["milkweed.request_id"] = trace.request_id.decode()
        if trace.images:
            attributes["milkweed.model"] = trace.model_name
            attributes["milkweed.images"] = trace.images
        attributes |= {f"milkweed.{name}": value for name, value in trace.notes.items()}
        code, failed = trace.code, status >= 500
        if code is not None:
            attributes["milkweed.code"] = code
        if failed:
            attributes["error.type"] = code or str(status)
        self._processor.on_end(
            self._make(
                name,
                trace.span,
                times_ns=_unix_ns((trace.started, *trace.ends, end)),
                stages=STAGES,
                attributes=attributes,
                error=(code or "") if failed else None,
                resource=self._resource,
                scope=self._scope,
            )
        )
        return exemplar

    def close(self) -> None:
        """Send what waits, for a bounded time; blocks."""
        self._exporter.close_soon()
        # The SDK's own end would wait half a minute for a collector that hangs.
        ending = threading.Thread(target=self._processor.shutdown, name="milkweed-traces-end", daemon=True)
        ending.start()
        ending.join(FLUSH_SECONDS)
        if ending.is_alive():
            logger.warning("the last traces were not sent within %g s", FLUSH_SECONDS)
        else:
            self._senders_words.removeFilter(self._once)

    def collect(self) -> Iterator[Metric]:
        """What became of followed requests, for the registry."""
        family = CounterMetricFamily(
            "milkweed_traced_requests",
            "Traced requests by what became of their spans: exported, failed, dropped (too many waited).",
            labels=["outcome"],
        )
        exporter = self._exporter
        for outcome, count in (
            ("exported", exporter.exported),
            ("failed", exporter.failed),
            ("dropped", self._dropped),
        ):
            family.add_metric([outcome], count)
        yield family


def _unix_ns(seconds: Sequence[float]) -> list[int]:
    """Unix time of perf_counter seconds, all by one offset, so that what met without gaps still does."""
    offset = time.time_ns() - time.perf_counter_ns()
    return [offset + int(each * 1e9) for each in seconds]


def _missing(error: ImportError) -> TracingError:
    return TracingError(
        "otlp_endpoint needs opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http: "
        f"pip install 'milkweed[otel]' ({error})"
    )
