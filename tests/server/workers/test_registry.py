"""Metrics of several processes: the sum of all, as Prometheus' own parser reads it."""

from collections.abc import Sequence

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from milkweed.server.exposition import exposition
from milkweed.server.workers.messages import Family, decode_families, encode
from milkweed.server.workers.registry import Sums, lasting, taken_down


class Process:
    """Some series of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.counter = Counter("milkweed_done", "x", ["model"], registry=self.registry)
        self.gauge = Gauge("milkweed_now", "x", registry=self.registry)
        self.failing = Gauge("milkweed_file_reload_failing", "x", ["file"], registry=self.registry)
        self.histogram = Histogram("milkweed_seconds", "x", ["model"], buckets=(1, 5, 10), registry=self.registry)
        self.build = Gauge("milkweed_build_info", "x", registry=self.registry)
        self.build.set(1)

    def report(self) -> list[Family]:
        """As it goes over the wire."""
        return decode_families(encode(taken_down(self.registry.collect())))


def samples(own: Process, others: Sequence[list[Family]]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    registry = CollectorRegistry()
    registry.register(Sums(own.registry, lambda: [family for families in others for family in families]))
    body, _ = exposition(registry, "application/openmetrics-text; version=1.0.0")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def test_samples_of_all_processes_add_up() -> None:
    engine, one, two = Process(), Process(), Process()
    for process, times in ((engine, 1), (one, 2), (two, 4)):
        process.counter.labels("a").inc(times)
        process.gauge.set(10 * times)
        for value in (0.5, 7, 70)[:times]:
            process.histogram.labels("a").observe(value)
        process.failing.labels("keys").set(1)
    two.counter.labels("only here").inc(3)
    found = samples(engine, [one.report(), two.report()])
    a = ("model", "a")
    assert found["milkweed_done_total", (a,)] == 7
    assert found["milkweed_done_total", (("model", "only here"),)] == 3
    assert found["milkweed_now", ()] == 70
    assert [found["milkweed_seconds_bucket", (("le", le), a)] for le in ("1.0", "5.0", "10.0", "+Inf")] == [3, 3, 5, 6]
    assert found["milkweed_seconds_count", (a,)] == 6
    assert found["milkweed_seconds_sum", (a,)] == pytest.approx(3 * 0.5 + 2 * 7 + 70)
    assert found["milkweed_build_info", ()] == 1  # of the whole server
    assert found["milkweed_file_reload_failing", (("file", "keys"),)] == 1  # one file, whoever reads it


def test_what_a_process_counted_lasts_and_how_it_was_does_not() -> None:
    engine, gone = Process(), Process()
    gone.counter.labels("a").inc(5)
    gone.gauge.set(3)
    found = samples(engine, [lasting(gone.report())])
    assert found["milkweed_done_total", (("model", "a"),)] == 5
    assert found["milkweed_now", ()] == 0


def test_exemplars_survive() -> None:
    engine, worker = Process(), Process()
    worker.histogram.labels("a").observe(7, {"trace_id": "f" * 32})
    registry = CollectorRegistry()
    registry.register(Sums(engine.registry, worker.report))
    body, _ = exposition(registry, "application/openmetrics-text; version=1.0.0")
    found = [
        sample.exemplar.labels
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
        if sample.exemplar is not None
    ]
    assert found == [{"trace_id": "f" * 32}]
