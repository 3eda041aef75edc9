"""Turns snapshots of the queue into gauges, at each scrape."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric


class QueueSnapshot(NamedTuple):
    """What waits for one version of a model. Versions of a name share a label; `came` is when the oldest image came."""

    label: str
    images: int
    bytes: int
    pixels: int
    came: float | None


def queue_families(waiting: Sequence[QueueSnapshot], now: float, predicted_seconds: float) -> Iterator[Metric]:
    """The metric families of the queue, for the registry."""
    labels = ["model"]
    depth = GaugeMetricFamily("milkweed_queue_depth_images", "Images that wait.", labels=labels)
    size = GaugeMetricFamily("milkweed_queue_bytes", "Encoded bytes that wait.", labels=labels)
    pixels = GaugeMetricFamily("milkweed_queue_pixels", "Decoded pixels of the images that wait.", labels=labels)
    text = "How long the oldest waiting image has waited."
    age = GaugeMetricFamily("milkweed_queue_oldest_age_seconds", text, labels=labels)
    for label in dict.fromkeys(each.label for each in waiting):
        same = [each for each in waiting if each.label == label]
        came = [each.came for each in same if each.came is not None]
        depth.add_metric([label], sum(each.images for each in same))
        size.add_metric([label], sum(each.bytes for each in same))
        pixels.add_metric([label], sum(each.pixels for each in same))
        age.add_metric([label], max(0.0, now - min(came)) if came else 0.0)
    text = "When an engine should be free for what comes now."
    yield from (depth, size, pixels, age)
    yield GaugeMetricFamily("milkweed_queue_predicted_wait_seconds", text, value=predicted_seconds)
