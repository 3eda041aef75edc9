"""Enters models and batches into the metrics, and batches into the cost models."""

from ...inference.pipeline import decoded_by
from ...inference.results import BatchResult, TopClasses
from ..config.settings import Settings
from ..repository.served_model import MOST_LABELS, ServedModel
from ..scheduler.cost_model import CostModel
from ..scheduler.request import Batch
from ..telemetry.metrics import Metrics


def record_model(metrics: Metrics, settings: Settings, model: ServedModel) -> None:
    """Begin the series of a model that begins to serve."""
    version = model.version
    bound = metrics.model(model.name)
    few = model.labels if model.num_classes <= MOST_LABELS else ()
    bound.predictions = {i: metrics.predictions.labels(model.name, label.label) for i, label in enumerate(few)}
    metrics.request_timeout.labels(model.name).set(settings.of(model.name).timeout_ms / 1e3)
    metrics.load_failures.labels(model.name)  # from 0, so that the first is seen as one
    for form, value in model.parameter_bytes.items():
        metrics.parameter_bytes.labels(model.name, version, form).set(value)
    for kind, count in model.kernel_fallbacks.items():
        metrics.kernel_fallbacks.labels(model.name, version, kind).set(count)
    metrics.load_seconds.labels(model.name, version).set(model.load_seconds)
    metrics.warmup_seconds.labels(model.name, version).set(model.warmup_seconds)
    metrics.model_ready.labels(model.name, version).set(1)
    blocks = sorted({layer.nblocks for layer in model.config.structure.values()})
    metrics.model_info.labels(
        *(model.name, version, model.config.arch, model.dtype, model.device),
        *(model.pipeline.backend.name, model.pipeline.loader.name, ",".join(map(str, blocks)) or "0", version),
    ).set(1)


def record_batch(metrics: Metrics, model: ServedModel, engine: str, batch: Batch, result: BatchResult) -> None:
    """Count one batch: on the thread of the engine that ran it. `engine`: name of that engine."""
    for decoder, format in decoded_by([item.info for item in batch.items], result.decoders):
        metrics.decode_backend.labels(decoder, format).inc()
    bound = metrics.model(model.name)
    for item, outcome in zip(batch.items, result.outcomes, strict=True):
        if model.labels and isinstance(outcome, TopClasses) and not item.request.shadow:  # which nobody was answered
            bound.confidence.observe(outcome.confidence)
            if (counter := bound.predictions.get(outcome.best)) is not None:
                counter.inc()
    forward = result.forward
    if forward is None:
        return
    full = forward.images >= model.max_batch_size
    bound.batch_size.observe(forward.images)
    bound.batches["full" if full else batch.reason].inc()
    bound.padding.inc(forward.padding)
    metrics.engine_busy.labels(engine).inc(forward.busy_seconds)


def observe_batch(costs: CostModel, batch: Batch, result: BatchResult) -> None:
    """Learn what a batch took on its engine, and by how much its answers were later than expected."""
    costs.observe_decode(len(batch.items), batch.pixels, result.decoded - result.started)
    for item in batch.items:
        request = item.request
        if request.expected_finish is not None and item.index == len(request.outcomes) - 1:
            costs.observe_lateness(result.finished - request.expected_finish)
    if result.forward is not None and result.forward.computed:
        costs.observe(result.forward.computed, result.forwarded - result.launched)
