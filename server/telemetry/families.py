"""Makes the metric families of figures that are read from live objects at each scrape."""

from collections.abc import Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily


def counter(name: str, text: str, **by: Mapping[Any, float]) -> CounterMetricFamily:
    """A family of counters. `by`: one label, and the figure for each of its values."""
    ((label, figures),) = by.items()
    family = CounterMetricFamily(f"milkweed_{name}", text, labels=[label])
    for value, figure in figures.items():
        family.add_metric([value], figure)
    return family


def gauge(name: str, text: str, **by: Mapping[Any, float]) -> GaugeMetricFamily:
    """A family of gauges; see `counter`."""
    ((label, figures),) = by.items()
    family = GaugeMetricFamily(f"milkweed_{name}", text, labels=[label])
    for value, figure in figures.items():
        family.add_metric([value], figure)
    return family
