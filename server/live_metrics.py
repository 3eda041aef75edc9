"""What the engine and the loaders' decoders have been through, read from them at each scrape."""

import time
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from .engine import Engine
from .served import ServedModel


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
        health = model.pipeline.loader.health
        rebuilds.add_metric([name], health.rebuilds)
        lost.add_metric([name], health.lost_images)
        suspect.add_metric([name], health.suspect_images)
        suspects.add_metric([name], health.suspects)
        healthy.add_metric([name], float(health.trouble is None))
    yield from (rebuilds, lost, suspect, suspects, healthy)


def collect_engine(engine: Engine, models: Mapping[str, ServedModel]) -> Iterator[Metric]:
    """The series of the engine's threads."""
    device = next((str(model.pipeline.device) for model in models.values()), "none")
    family = GaugeMetricFamily(
        "milkweed_engine_heartbeat_timestamp_seconds",
        "Unix time of the engine's last sign of life; now, while it is idle.",
        labels=["device"],
    )
    family.add_metric([device], time.time() - engine.silent_seconds())
    restarts = CounterMetricFamily(
        "milkweed_engine_restarts", "Times an engine thread was ended and begun again.", labels=["device"]
    )
    restarts.add_metric([device], engine.restarts)
    waiting = GaugeMetricFamily(
        "milkweed_engine_decoded_images", "Images that are decoded and wait for the device.", labels=["device"]
    )
    waiting.add_metric([device], engine.decoded_images)
    yield from (family, restarts, waiting)
