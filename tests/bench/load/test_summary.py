"""What rows come to, from samples written by hand."""

from dataclasses import replace

import pytest

from milkweed.bench.load.plan import Plan, Shot
from milkweed.bench.load.samples import Samples, is_late, merged, percentile, summary, timeline

PLAN = Plan(targets=(("127.0.0.1", 1),), path="/", shots=(Shot(b"", ""),), seconds=2.0, rate=100, timeout_seconds=0.5)


def samples(*rows: tuple[float, float, str], good: bool = True, lateness: float = 0.0) -> Samples:
    found = Samples()
    for start, latency, outcome in rows:
        found.add(start, latency, lateness, outcome, good)
    return found


@pytest.mark.parametrize(("q", "want"), [(0, 1), (10, 1), (10.1, 2), (50, 5), (90, 9), (99, 10), (99.9, 10), (100, 10)])
def test_percentiles_are_values_that_occurred(q: float, want: float) -> None:
    assert percentile([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], q) == want


def test_goodput_is_of_answers_in_time() -> None:
    seen = samples((0, 0.1, "200"), (0.5, 0.5, "200"), (1, 0.6, "200"), (1.2, 0.01, "503"), (1.9, 0.5, "timeout"))
    row = summary(PLAN, seen)
    assert row["goodput"] == 1.0  # two within half a second, in two seconds
    assert row["statuses"] == {"200": 3, "503": 1, "timeout": 1}
    assert (row["sent"], row["answered"], row["lost"], row["good_failed"]) == (5, 4, 0, 2)
    assert row["latency_ms"] == {"p50": 500, "p90": 600, "p95": 600, "p99": 600, "p99.9": 600, "max": 600}


def test_malformed_requests_are_counted_apart() -> None:
    seen = samples((0, 0.1, "200"), (0, 0.1, "reset"))
    row = summary(PLAN, merged([seen, samples((0, 0.2, "422"), (0, 9.0, "200"), good=False)]))
    assert (row["statuses"], row["malformed_statuses"]) == ({"200": 1, "reset": 1}, {"200": 1, "422": 1})
    assert (row["good_sent"], row["good_failed"], row["lost"]) == (2, 1, 1)
    assert row["latency_ms"]["max"] == 100


def test_a_late_client_says_so() -> None:
    row = summary(PLAN, samples(*[(0, 0.1, "200")] * 50, lateness=0.02))
    assert (row["lateness_ms"]["p99"], row["client_late"]) == (20, True)
    row = summary(PLAN, samples(*[(0, 0.1, "200")] * 50, lateness=0.009))
    assert (row["lateness_ms"]["p99"], row["client_late"]) == (9, False)
    assert not is_late({"p99": 0.9}, {"p99": 2})  # less than a millisecond is no news
    closed = summary(replace(PLAN, rate=0), samples((0, 0.1, "200"), lateness=1))
    assert (closed["lateness_ms"], closed["client_late"], closed["loop"]) == (None, False, "closed")


def test_a_row_that_ends_before_its_time_has_its_own_seconds() -> None:
    seen = samples(*[(number / 10, 0.01, "200") for number in range(100)])
    seen.stopped_after = 10.0
    row = summary(replace(PLAN, seconds=86_400), merged([seen]))
    assert (row["seconds"], row["goodput"]) == (10, 10)
    counted = summary(replace(PLAN, rate=0, requests=3), samples((0, 0.2, "200"), (0.2, 0.2, "200"), (0.4, 0.4, "200")))
    assert (counted["seconds"], counted["goodput"]) == (0.8, 3.8)  # until the last one's end


def test_nothing_accepted_has_no_latency() -> None:
    row = summary(PLAN, samples((0, 0.5, "timeout")))
    assert (row["latency_ms"], row["goodput"]) == (None, 0)


def test_the_parts_of_several_clients_add_up() -> None:
    first, second = samples((0, 0.1, "200"), (0, 0.1, "503")), samples((0, 0.2, "503"), (0, 0.3, "200"))
    first.bare_refusals, second.bare_refusals, second.wrong, second.moved = 1, 2, 3, 4
    whole = merged([first, second])
    assert whole.counts() == {"200": 2, "503": 2}
    assert whole.accepted() == [0.1, 0.3]
    assert (whole.bare_refusals, whole.wrong, whole.moved) == (3, 3, 4)


def test_a_timeline_sorts_by_intended_start() -> None:
    seen = samples((0.1, 0.9, "200"), (0.2, 0.1, "200"), (0.7, 0.5, "timeout"), (1.6, 0.2, "200"))
    assert timeline(seen, 0.5) == [
        {"at": 0.0, "statuses": {"200": 2}, "p99_ms": 900},
        {"at": 0.5, "statuses": {"timeout": 1}, "p99_ms": None},
        {"at": 1.0, "statuses": {}, "p99_ms": None},
        {"at": 1.5, "statuses": {"200": 1}, "p99_ms": 200},
    ]


def test_shares_of_a_plan_add_up() -> None:
    parts = [replace(PLAN, connections=7).share(number, 3) for number in range(3)]
    assert [part.connections for part in parts] == [3, 2, 2]
    assert sum(part.rate for part in parts) == pytest.approx(100)
    assert len({part.seed for part in parts}) == 3
