"""Tests which connection makes room for a new one."""

from dataclasses import dataclass, field

import pytest

from milkweed.server.config.settings import Settings
from milkweed.server.http.transport.connection_table import MOST_LEAVING, STEADY_SECONDS, ConnectionTable
from milkweed.server.telemetry.metrics import Metrics


@dataclass(eq=False)
class Fake:
    """A connection that notes what is asked of it."""

    name: str
    asked: list[str] = field(default_factory=list)

    def evict(self) -> None:
        self.asked.append("evict")

    def abort(self) -> None:
        self.asked.append("abort")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


@dataclass
class Port:
    table: ConnectionTable
    metrics: Metrics
    clock: Clock

    def open(self, *names: str) -> list[Fake]:
        made = [Fake(name) for name in names]
        for each in made:
            assert self.table.opened(each)
        return made

    def closed_for(self, reason: str) -> float:
        return self.metrics.registry.get_sample_value("milkweed_http_connections_closed_total", {"reason": reason}) or 0


@pytest.fixture
def three() -> Port:
    metrics, clock = Metrics(), Clock()
    return Port(ConnectionTable(Settings(), 3, metrics, clock), metrics, clock)


def test_the_connection_that_waits_for_longest_is_evicted(three: Port) -> None:
    a, b, c = three.open("a", "b", "c")
    three.table.mark_waiting(a)  # it had an answer: it owes the next request from now on
    three.open("d")
    assert (a.asked, b.asked, c.asked) == ([], ["evict"], [])
    assert three.closed_for("evicted") == 1
    three.table.closed(b)
    assert three.table.open == 3


def test_a_busy_connection_is_never_evicted(three: Port) -> None:
    a, b, c = three.open("a", "b", "c")
    three.table.mark_busy(a)
    three.table.mark_busy(b)
    (d,) = three.open("d")
    assert (a.asked, b.asked, c.asked) == ([], [], ["evict"])
    three.table.mark_busy(d)
    assert not three.table.opened(Fake("e"))
    assert three.closed_for("evicted") == 1
    assert three.table.open == 5  # two of them on their way out


def test_a_steady_upload_is_evicted_last(three: Port) -> None:
    a, b, c = three.open("a", "b", "c")
    three.table.mark_steady(a)
    for other in (b, c):
        three.open("new")
        assert other.asked == ["evict"]
        three.table.closed(other)
    assert a.asked == []


def test_an_upload_that_has_stopped_is_evicted_like_any_other(three: Port) -> None:
    a, b, c = three.open("a", "b", "c")
    three.table.mark_steady(a)
    three.clock.now += STEADY_SECONDS + 1
    three.table.mark_waiting(b)
    three.table.mark_waiting(c)
    three.open("d")
    assert (a.asked, b.asked, c.asked) == (["evict"], [], [])


def test_the_steady_upload_that_is_behind_is_evicted(three: Port) -> None:
    a, b, c = three.open("a", "b", "c")
    for each in (a, b, c, a):
        three.table.mark_steady(each)
    three.open("d")
    assert (a.asked, b.asked, c.asked) == ([], ["evict"], [])


def test_an_evicted_connection_is_not_evicted_again(three: Port) -> None:
    a, b, c = three.open("a", "b", "c")
    three.open("d")
    three.table.mark_waiting(a)
    three.table.mark_steady(a)
    three.open("e")
    assert (a.asked, b.asked, c.asked) == (["evict"], ["evict"], [])


@pytest.mark.parametrize("refused", [False, True])
def test_the_first_of_too_many_that_were_sent_away_is_aborted(three: Port, refused: bool) -> None:
    """Each may read for a moment why, but only so many at once."""
    away = three.open("a", "b", "c")
    if refused:  # those that there are cannot make room
        for each in away:
            three.table.mark_busy(each)
        away = [Fake(str(number)) for number in range(MOST_LEAVING + 1)]
        assert not any(three.table.opened(each) for each in away)
    else:
        away += three.open(*map(str, range(MOST_LEAVING + 1)))
    assert away[0].asked[-1] == "abort"
    assert "abort" not in away[1].asked
