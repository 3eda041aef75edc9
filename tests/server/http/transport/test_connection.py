"""Which connection makes room for a new one."""

from dataclasses import dataclass, field

import pytest

from milkweed.server.config.settings import Settings
from milkweed.server.http.transport.connection_table import (
    MOST_LEAVING,
    STEADY_SECONDS,
    ConnectionLimits,
    ConnectionTable,
)
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
class Books:
    books: ConnectionTable
    metrics: Metrics
    clock: Clock

    def open(self, *names: str) -> list[Fake]:
        made = [Fake(name) for name in names]
        for each in made:
            assert self.books.opened(each)
        return made

    def closed_for(self, reason: str) -> float:
        return self.metrics.registry.get_sample_value("milkweed_http_connections_closed_total", {"reason": reason}) or 0


@pytest.fixture
def three() -> Books:
    metrics, clock = Metrics(), Clock()
    return Books(ConnectionTable(ConnectionLimits.of(Settings()), 3, metrics, clock), metrics, clock)


def test_who_has_owed_us_bytes_for_longest_makes_room(three: Books) -> None:
    a, b, c = three.open("a", "b", "c")
    three.books.waits(a)  # it had an answer: it owes the next request from now on
    three.open("d")
    assert (a.asked, b.asked, c.asked) == ([], ["evict"], [])
    assert three.closed_for("evicted") == 1
    three.books.closed(b)
    assert three.books.open == 3


def test_whom_we_owe_an_answer_never_does(three: Books) -> None:
    a, b, c = three.open("a", "b", "c")
    three.books.served(a)
    three.books.served(b)
    (d,) = three.open("d")
    assert (a.asked, b.asked, c.asked) == ([], [], ["evict"])
    three.books.served(d)
    assert not three.books.opened(Fake("e"))
    assert three.closed_for("evicted") == 1
    assert three.books.open == 5  # two of them on their way out


def test_a_steady_upload_goes_last(three: Books) -> None:
    a, b, c = three.open("a", "b", "c")
    three.books.progressed(a)
    for other in (b, c):
        three.open("new")
        assert other.asked == ["evict"]
        three.books.closed(other)
    assert a.asked == []


def test_an_upload_that_has_stopped_goes_like_anybody(three: Books) -> None:
    a, b, c = three.open("a", "b", "c")
    three.books.progressed(a)
    three.clock.now += STEADY_SECONDS + 1
    three.books.waits(b)
    three.books.waits(c)
    three.open("d")
    assert (a.asked, b.asked, c.asked) == (["evict"], [], [])


def test_among_steady_uploads_the_one_that_is_behind_goes(three: Books) -> None:
    a, b, c = three.open("a", "b", "c")
    for each in (a, b, c, a):
        three.books.progressed(each)
    three.open("d")
    assert (a.asked, b.asked, c.asked) == ([], ["evict"], [])


def test_whoever_leaves_is_not_asked_again_and_not_counted(three: Books) -> None:
    a, b, c = three.open("a", "b", "c")
    three.open("d")
    three.books.waits(a)
    three.books.progressed(a)
    three.open("e")
    assert (a.asked, b.asked, c.asked) == (["evict"], ["evict"], [])


def test_so_many_leave_at_once_and_no_more(three: Books) -> None:
    gone = three.open("a", "b", "c")
    for number in range(MOST_LEAVING - 1):
        gone += three.open(str(number))
    assert "abort" not in gone[0].asked
    gone += three.open("z", "zz")
    assert gone[0].asked == ["evict", "abort"]
    assert gone[1].asked == ["evict"]
