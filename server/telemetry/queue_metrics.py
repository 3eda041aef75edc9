"""Turns snapshots of the queue into gauges, at each scrape."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric

from .families import gauge


class QueueSnapshot(NamedTuple):
    """What waits for one version of a model. Versions of a name share a label; `came` is when the oldest image came."""

    label: str
    images: int
    bytes: int
    pixels: int
    came: float | None


def queue_families(waiting: Sequence[QueueSnapshot], now: float, predicted_seconds: float) -> Iterator[Metric]:
    """The metric families of the queue, for the registry."""
    images, size, pixels, age = (dict.fromkeys((queue.label for queue in waiting), 0.0) for _ in range(4))
    for queue in waiting:
        images[queue.label] += queue.images
        size[queue.label] += queue.bytes
        pixels[queue.label] += queue.pixels
        if queue.came is not None:
            age[queue.label] = max(age[queue.label], now - queue.came)
    yield gauge("queue_depth_images", "Images that wait.", model=images)
    yield gauge("queue_bytes", "Encoded bytes that wait.", model=size)
    yield gauge("queue_pixels", "Decoded pixels of the images that wait.", model=pixels)
    yield gauge("queue_oldest_age_seconds", "How long the oldest waiting image has waited.", model=age)
    text = "When an engine should be free for what comes now."
    yield GaugeMetricFamily("milkweed_queue_predicted_wait_seconds", text, value=predicted_seconds)
