"""What the engine and the loaders' decoders have been through, read from them at each scrape."""

import time
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ..repository.served_model import ServedModel
from .engine_group import EngineGroup


def collect_decoders(models: Mapping[str, ServedModel]) -> Iterator[Metric]:
    """The series of every model's loader."""
    labels = ["model"]
    rebuilds = CounterMetricFamily(
        "milkweed_decoder_rebuilds", "Times a decoder was made anew after a batch had broken it.", labels=labels
    )
    lost = CounterMetricFamily(
        "milkweed_decoder_lost_batch_images", "Images of such batches; all were decoded again.", labels=labels
    )
    suspect = CounterMetricFamily(
        "milkweed_decoder_suspect_images",
        "Images kept from a batching decoder because their source had broken batches.",
        labels=labels,
    )
    suspects = GaugeMetricFamily("milkweed_decoder_suspects", "Sources that are kept from it now.", labels=labels)
    healthy = GaugeMetricFamily(
        "milkweed_decoder_healthy", "0 where a decoder cannot be made anew and only a restart can help.", labels=labels
    )
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
    labels = ["device"]
    up = GaugeMetricFamily(
        "milkweed_engine_up", "1 while the engine answers; 0 once it hangs or has ended.", labels=labels
    )
    heartbeat = GaugeMetricFamily(
        "milkweed_engine_heartbeat_timestamp_seconds",
        "Unix time of the engine's last sign of life; now, while it is idle.",
        labels=labels,
    )
    restarts = CounterMetricFamily(
        "milkweed_engine_restarts", "Times an engine thread was ended and begun again.", labels=labels
    )
    waiting = GaugeMetricFamily(
        "milkweed_engine_decoded_images", "Images that are decoded and wait for the device.", labels=labels
    )
    for name, engine in zip(engines.names, engines.engines, strict=True):
        up.add_metric([name], float(engine.alive))
        heartbeat.add_metric([name], time.time() - engine.silent_seconds())
        restarts.add_metric([name], engine.restarts)
        waiting.add_metric([name], engine.decoded_images)
    yield from (up, heartbeat, restarts, waiting)
