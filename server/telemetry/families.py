"""Makes the metric families of figures that are read from live objects at each scrape."""

from collections.abc import Mapping
from typing import Any, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

Family = TypeVar("Family", CounterMetricFamily, GaugeMetricFamily)


def counter(name: str, text: str, **by: Mapping[Any, float]) -> CounterMetricFamily:
    """Make a family of counters. `by`: one label, and the figure for each of its values."""
    return _family(CounterMetricFamily, name, text, by)


def gauge(name: str, text: str, **by: Mapping[Any, float]) -> GaugeMetricFamily:
    """Make a family of gauges; see `counter`."""
    return _family(GaugeMetricFamily, name, text, by)


def _family(kind: type[Family], name: str, text: str, by: Mapping[str, Mapping[Any, float]]) -> Family:
    ((label, figures),) = by.items()
    family = kind(f"milkweed_{name}", text, labels=[label])
    for value, figure in figures.items():
        family.add_metric([value], figure)
    return family
