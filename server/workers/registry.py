"""Metrics of several processes as those of one."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from .messages import Family, Sample

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
    """What still counts once its process has gone: what it counted, not how it was; families of one name as one."""
    return [_together(each) for each in _by_name(family for family in families if family.type in _ADDS_UP).values()]


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
        others = _by_name(self._others())
        for metric in self._own.collect():
            same = others.pop(metric.name, None)
            yield metric if same is None else _metric(_together([*taken_down([metric]), *same]))
        for families in others.values():
            yield _metric(_together(families))


def _by_name(families: Iterable[Family]) -> dict[str, list[Family]]:
    found: dict[str, list[Family]] = {}
    for family in families:
        found.setdefault(family.name, []).append(family)
    return found


def _together(families: list[Family]) -> Family:
    """Families of one name as one."""
    first = families[0]
    samples: dict[Key, Sample] = {}
    for family in families:
        for name, labels, value, exemplar in family.samples:
            key = (name, tuple(sorted(labels.items())))
            _, _, before, kept = samples.get(key, (name, labels, 0.0, None))
            both = max(before, value) if first.name in MOST_OF else before + value
            samples[key] = (name, labels, both, exemplar or kept)
    ordered = [samples[key] for key in sorted(samples, key=_place)]
    return Family(first.name, first.documentation, first.type, ordered)


def _metric(family: Family) -> Metric:
    found = Metric(family.name, family.documentation, family.type)
    for name, labels, value, exemplar in family.samples:
        found.add_sample(name, labels, value, None, None if exemplar is None else Exemplar(*exemplar))
    return found


def _place(key: Key) -> tuple[tuple[tuple[str, str], ...], str, float]:
    """A histogram's buckets go together, in order."""
    name, items = key
    labels = dict(items)
    le = labels.pop("le", "")
    return tuple(labels.items()), name, float(le) if le else 0.0
