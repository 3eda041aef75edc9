"""Defines the series that the service exports, on one registry an app; names are stable, label sets closed."""

import gzip
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.registry import Collector

from ..errors import ERROR_CODES

logger = logging.getLogger("milkweed.metrics")

# The stages of a request, in order; they meet without gaps, so they add up to the whole.
STAGES = ("receive", "fetch", "parse", "queue", "decode", "ready", "forward", "postprocess", "deliver", "respond")
OUTCOMES = ("ok", "invalid", "rejected", "expired", "cancelled", "error")
BATCH_REASONS = ("full", "captured", "idle_device", "drain")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
CANCEL_STAGES = ("receive", "wait")
CPU_STAGES = ("decode", "forward", "postprocess")
CLOSE_REASONS = ("head_timeout", "body_timeout", "malformed", "too_large", "evicted", "refused", "not_reading")
BODY_FORMS = ("raw", "array", "multipart", "json")
SHADOW_OUTCOMES = ("same", "other", "failed", "dropped")
PARAMETER_FORMS = ("dense_equivalent", "resident", "on_disk")

# Seconds. A small forward takes less than the usual first bucket, 5 ms.
SECONDS_BUCKETS = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03),
    *(0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0),
)
BYTES_BUCKETS = tuple(float(4**power) for power in range(5, 14))  # 1 KiB ... 64 MiB
CONFIDENCE_BUCKETS = (*(tenth / 10 for tenth in range(1, 10)), 0.95, 0.99, 1.0)
KL_BUCKETS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
DIFFERENCE_BUCKETS = (*(-seconds for seconds in reversed(SECONDS_BUCKETS)), 0.0, *SECONDS_BUCKETS)
BATCH_BUCKETS = tuple(float(2**power) for power in range(9))  # 1 ... 256


class ModelMetrics:
    """The series of one model, bound once so that requests pay for no look-up."""

    def __init__(self, metrics: "Metrics", model: str) -> None:
        self.stages = tuple(metrics.stage_duration.labels(model, stage) for stage in STAGES)
        self.images = {outcome: metrics.images.labels(model, outcome) for outcome in OUTCOMES}
        self.batch_size = metrics.batch_size.labels(model)
        self.batches = {reason: metrics.batches.labels(model, reason) for reason in BATCH_REASONS}
        self.padding = metrics.padding.labels(model)
        self.confidence = metrics.confidence.labels(model)
        self.predictions: dict[int, Counter] = {}
        """The counters of best classes, by the place of the class; empty where classes are too many to count."""


class Metrics:
    """All series of one app and the registry they live on."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        # A `_created` series beside each counter would double the scrape.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._define_http()
        self._define_security()
        self._define_engine()
        self._define_models()
        self._define_loading()
        self._define_shadows()
        self._models: dict[str, ModelMetrics] = {}
        self._http_children: dict[tuple[str, str, int], Histogram] = {}
        # The stubs ask for a CollectorRegistry method that ProcessCollector never uses.
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

    def _histogram(self, name: str, text: str, labels: tuple[str, ...], buckets: Iterable[float]) -> Histogram:
        return Histogram(f"milkweed_{name}", text, labels, buckets=tuple(buckets), registry=self.registry)

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"milkweed_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(f"milkweed_{name}", text, labels, registry=self.registry)

    def _define_http(self) -> None:
        self.http_duration = self._histogram(
            "http_request_duration_seconds",
            "From the request's headers to the last byte of the answer handed to the socket.",
            ("route", "method", "code"),
            SECONDS_BUCKETS,
        )
        self.in_flight = self._gauge("http_requests_in_flight", "Requests being answered now.", ("route",))
        self._body_bytes = self._histogram(
            "http_request_body_bytes", "Size of request bodies.", ("route", "format"), BYTES_BUCKETS
        )
        self.held_bytes = self._gauge("http_buffered_body_bytes", "Bytes of request bodies in memory now.")
        rejected = self._counter(
            "requests_rejected_total", "Requests answered with an error, each under one reason.", ("reason",)
        )
        self.rejected = {code: rejected.labels(kind.reason) for code, kind in ERROR_CODES.items()}
        cancelled = self._counter(
            "requests_cancelled_total", "Requests whose client went away, by how far they were.", ("stage",)
        )
        self.cancelled = {stage: cancelled.labels(stage) for stage in CANCEL_STAGES}
        self.stage_duration = self._histogram(
            "request_stage_duration_seconds",
            "Time of answered classify requests by stage; the stages of a request add up to its whole.",
            ("model", "stage"),
            SECONDS_BUCKETS,
        )
        self.loop_lag = self._histogram(
            "event_loop_lag_seconds", "How late the event loop runs a timer.", (), SECONDS_BUCKETS
        )

    def _define_security(self) -> None:
        self.connections = self._gauge("http_connections", "Connections that are open now.")
        closed = self._counter(
            "http_connections_closed_total", "Connections the server closed for a reason of its own.", ("reason",)
        )
        self.connections_closed = {reason: closed.labels(reason) for reason in CLOSE_REASONS}
        # Only callers in the file of keys are labels; requests without a known key are counted as rejected.
        self.caller_requests = self._counter("caller_requests_total", "Requests with a caller's key.", ("caller",))
        self.caller_refusals = self._counter(
            "caller_refusals_total", "Requests beyond a caller's limits, by which one.", ("caller", "limit")
        )
        self.reload_failing = self._gauge(
            "file_reload_failing", "1 while the newest version of a file cannot be used.", ("file",)
        )

    def _define_engine(self) -> None:
        self.batch_size = self._histogram("batch_size", "Images a batch.", ("model",), BATCH_BUCKETS)
        self.batches = self._counter(
            "batches_total",
            "Batches by why they were not larger: full, a captured size that costs less, device idle, drain.",
            ("model", "reason"),
        )
        self.padding = self._counter(
            "batch_padding_images_total", "Empty places computed to fill fixed batch shapes.", ("model",)
        )
        self.images = self._counter("images_total", "Images by how they ended.", ("model", "outcome"))
        self.head_images = self._counter(
            "head_images_total", "Images answered by a head on the embedding.", ("model", "head", "version")
        )
        self.confidence = self._histogram(
            "prediction_confidence", "Score of the best class of answered images.", ("model",), CONFIDENCE_BUCKETS
        )
        self.predictions = self._counter(
            "predictions_total", "Answered images by their best class, of models with few.", ("model", "class")
        )
        self.decode_backend = self._counter(
            "decode_backend_images_total", "Decoded images by decoder and format.", ("backend", "format")
        )
        self.engine_busy = self._counter(
            "engine_busy_seconds_total",
            "Time the engine's thread worked on batches; near 1 a second it is full.",
            ("device",),
        )

    def _define_models(self) -> None:
        model = ("model", "version")
        self.parameter_bytes = self._gauge(
            "model_parameter_bytes",
            "Bytes of parameters: of the dense equivalent, in memory as served, in the bundle.",
            (*model, "form"),
        )
        self.model_info = self._gauge(
            "model_info",
            "Always 1: what is served.",
            (*model, "arch", "dtype", "device", "backend", "loader", "monarch_blocks", "sha256_12"),
        )
        self.load_seconds = self._gauge("model_load_duration_seconds", "Time to read the bundle.", model)
        self.warmup_seconds = self._gauge("model_warmup_duration_seconds", "Time of the first forwards.", model)
        self.model_ready = self._gauge("model_ready", "1 once the model is loaded and warm.", model)
        self.kernel_fallbacks = self._gauge(
            "model_kernel_fallbacks",
            "What of the forward does not run as it was meant to, by kind; /v1/models says why.",
            (*model, "kind"),
        )
        self.build_info = self._gauge("build_info", "Always 1: what is running.", ("version", "torch"))
        self.build_info.labels(package_version(), package_version("torch")).set(1)

    def _define_loading(self) -> None:
        self.request_timeout = self._gauge(
            "request_timeout_seconds", "Deadline of a request that tells none, as set.", ("model",)
        )
        self.load_failures = self._counter(
            "model_load_failures_total", "New versions that could not be served; what served went on.", ("model",)
        )
        self.loading = self._gauge(
            "model_loading_timestamp_seconds",
            "Unix time since when a model is being opened.",
            ("model",),
        )

    def _define_shadows(self) -> None:
        pair = ("model", "shadow")
        text = "Images that a model answered and its shadow was to see, by whether both have the same best class."
        self.shadow_images = self._counter("shadow_images_total", text, (*pair, "outcome"))
        text = "Divergence of a shadow's classes from its model's, nats an image."
        self.shadow_kl = self._histogram("shadow_kl", text, pair, KL_BUCKETS)
        text = "Forward of a shadow less that of its model, seconds an image of its batch."
        self.shadow_seconds = self._histogram("shadow_seconds_difference", text, pair, DIFFERENCE_BUCKETS)

    def model(self, name: str) -> ModelMetrics:
        """The bound series of one model, made on first use."""
        if name not in self._models:
            self._models[name] = ModelMetrics(self, name)
        return self._models[name]

    def body_bytes(self, route: str) -> dict[str, Histogram]:
        """The sizes of the bodies that one route gets, by their form."""
        return {form: self._body_bytes.labels(route, form) for form in BODY_FORMS}

    def forget_version(self, name: str, version: str) -> None:
        """Remove the series that name a version of a model."""
        for gauge in (self.parameter_bytes, self.model_info, self.load_seconds, self.warmup_seconds, self.model_ready):
            gauge.remove_by_labels({"model": name, "version": version})
        self.kernel_fallbacks.remove_by_labels({"model": name, "version": version})

    def forget_shadow(self, model: str, shadow: str) -> None:
        """Remove the series of a shadow: it has new evidence."""
        for metric in (self.shadow_images, self.shadow_kl, self.shadow_seconds):
            metric.remove_by_labels({"model": model, "shadow": shadow})

    def forget_model(self, name: str) -> None:
        """Remove every series of a model."""
        self._models.pop(name, None)
        for metric in vars(self).values():
            if isinstance(metric, Counter | Gauge | Histogram):
                with suppress(ValueError):  # it has no such label
                    metric.remove_by_labels({"model": name})

    def observe_http(
        self, route: str, method: str, code: int, seconds: float, exemplar: dict[str, str] | None = None
    ) -> None:
        """Record a finished HTTP request. `route` is a template or `other`, never a raw path."""
        key = (route, method if method in METHODS else "other", code)
        child = self._http_children.get(key)
        if child is None:
            child = self._http_children[key] = self.http_duration.labels(key[0], key[1], str(code))
        child.observe(seconds, exemplar)

    def collect_with(self, collect: Callable[[], Iterable[Metric]]) -> None:
        """Add series that are read from live objects at each scrape. `collect`: called on the scraping thread; must be
        quick and thread-safe."""
        self.registry.register(_Live(collect))


class _Live(Collector):
    """Adapts a function to the registry's collectors."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        try:
            return list(self._collect())
        except Exception:  # of a lost device there is no memory to read, but the scrape must still tell that it is lost
            logger.exception("a scrape is without some of its series")
            return []

    def describe(self) -> Iterable[Any]:
        return cast(Iterable[Any], ())  # or the function would be called at registration


def exposition(registry: CollectorRegistry, accept: str, gzipped: bool) -> tuple[bytes, str]:
    """A scrape's answer and its content type: Prometheus text, or OpenMetrics where it is asked for."""
    encode, content_type = choose_encoder(accept)
    body = encode(registry)
    return gzip.compress(body, 1) if gzipped else body, content_type


def package_version(name: str = "milkweed") -> str:
    """The installed version of a package."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"
