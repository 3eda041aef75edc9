"""Metrics of several processes as those of one."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from .messages import Family

# Of a worker: the engine's process says these for all, or they are of one process by nature.
OWN_PREFIXES = ("milkweed_build", "process_", "python_")

# Where several processes say the same, it is no more than if one says it.
MOST_OF = frozenset({"milkweed_file_reload_failing"})

_ADDS_UP = ("counter", "histogram", "summary")

Key = tuple[str, tuple[tuple[str, str], ...]]


def taken_down(families: Iterable[Metric]) -> list[Family]:
    """What was collected, as plain data."""
    return [
        Family(
            family.name,
            family.documentation,
            family.type,
            [
                (
                    sample.name,
                    sample.labels,
                    sample.value,
                    None
                    if sample.exemplar is None
                    else (dict(sample.exemplar.labels), sample.exemplar.value, _seconds(sample.exemplar.timestamp)),
                )
                for sample in family.samples
            ],
        )
        for family in families
        if not family.name.startswith(OWN_PREFIXES)
    ]


def _seconds(timestamp: Any) -> float | None:
    return None if timestamp is None else float(timestamp)


def lasting(families: Iterable[Family]) -> list[Family]:
    """What still counts once its process has gone: what it counted, not how it was."""
    return [family for family in families if family.type in _ADDS_UP]


class Sums(Collector):
    """The engine's own families and those of the workers, the samples of one name and labels summed.

    Args:
        own: of this process.
        others: what others took down; called at each scrape, on the scraping thread.
    """

    def __init__(self, own: Collector, others: Callable[[], Iterable[Family]]) -> None:
        self._own, self._others = own, others

    def describe(self) -> Iterator[Metric]:
        """Nothing is known before it is asked for."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """Every family once."""
        others: dict[str, list[Family]] = {}
        for family in self._others():
            others.setdefault(family.name, []).append(family)
        for metric in self._own.collect():
            yield _together(metric, others.pop(metric.name, []))
        for name, families in others.items():
            yield _together(Metric(name, families[0].documentation, families[0].type), families)


def _together(metric: Metric, others: list[Family]) -> Metric:
    if not others:
        return metric
    values: dict[Key, float] = {}
    exemplars: dict[Key, Exemplar | None] = {}
    own = [(each.name, each.labels, each.value, each.exemplar) for each in metric.samples]
    theirs = [
        (name, labels, value, None if exemplar is None else Exemplar(*exemplar))
        for family in others
        for name, labels, value, exemplar in family.samples
    ]
    for name, labels, value, exemplar in (*own, *theirs):
        key = (name, tuple(sorted(labels.items())))
        if metric.name in MOST_OF:
            values[key] = max(values.get(key, value), value)
        else:
            values[key] = values.get(key, 0.0) + value
        exemplars[key] = exemplar or exemplars.get(key)
    summed = Metric(metric.name, metric.documentation, metric.type)
    for (name, items), value in sorted(values.items(), key=lambda each: _place(each[0])):
        summed.add_sample(name, dict(items), value, None, exemplars[name, items])
    return summed


def _place(key: Key) -> tuple[tuple[tuple[str, str], ...], str, float]:
    """A histogram's buckets go together, in order."""
    name, items = key
    labels = dict(items)
    le = labels.pop("le", "")
    return tuple(labels.items()), name, float(le) if le else 0.0
