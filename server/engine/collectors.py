"""What the engine and the loaders' decoders have been through, read from them at each scrape."""

import time
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ..repository.served_model import ServedModel
from .engine_group import EngineGroup


def collect_decoders(models: Mapping[str, ServedModel]) -> Iterator[Metric]:
    """The series of every model's loader."""
    rebuilds = _counter("decoder_rebuilds", "Times a decoder was made anew after a batch had broken it.", "model")
    lost = _counter("decoder_lost_batch_images", "Images of such batches; all were decoded again.", "model")
    text = "Images kept from a batching decoder because their source had broken batches."
    suspect = _counter("decoder_suspect_images", text, "model")
    suspects = _gauge("decoder_suspects", "Sources that are kept from it now.", "model")
    text = "0 where a decoder cannot be made anew and only a restart can help."
    healthy = _gauge("decoder_healthy", text, "model")
    for name, model in dict(models).items():
        states = [pipeline.loader.health for pipeline in model.pipelines.values()]  # one on each device
        rebuilds.add_metric([name], sum(health.rebuilds for health in states))
        lost.add_metric([name], sum(health.lost_images for health in states))
        suspect.add_metric([name], sum(health.quarantined_images for health in states))
        suspects.add_metric([name], sum(health.quarantined_sources for health in states))
        healthy.add_metric([name], float(all(health.trouble is None for health in states)))
    yield from (rebuilds, lost, suspect, suspects, healthy)


def collect_engines(engines: EngineGroup) -> Iterator[Metric]:
    """The series of each engine's threads."""
    up = _gauge("engine_up", "1 while the engine answers; 0 once it hangs or has ended.", "device")
    text = "Unix time of the engine's last sign of life; now, while it is idle."
    heartbeat = _gauge("engine_heartbeat_timestamp_seconds", text, "device")
    restarts = _counter("engine_restarts", "Times an engine thread was ended and begun again.", "device")
    waiting = _gauge("engine_decoded_images", "Images that are decoded and wait for the device.", "device")
    for name, engine in zip(engines.names, engines.engines, strict=True):
        up.add_metric([name], float(engine.alive))
        heartbeat.add_metric([name], time.time() - engine.silent_seconds())
        restarts.add_metric([name], engine.restarts)
        waiting.add_metric([name], engine.decoded_images)
    yield from (up, heartbeat, restarts, waiting)


def _counter(name: str, text: str, label: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"milkweed_{name}", text, labels=[label])


def _gauge(name: str, text: str, label: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"milkweed_{name}", text, labels=[label])
