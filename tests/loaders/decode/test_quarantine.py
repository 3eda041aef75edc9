"""A source that breaks batches often enough is in quarantine, and leaves it again."""

import threading

from milkweed.loaders.decode.quarantine import MAX_SOURCES, WINDOW_SECONDS, Quarantine


class Clock:
    """A clock that stands until it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_three_failures_are_held_and_fade():
    clock = Clock()
    quarantine = Quarantine(clock)
    for _ in range(2):
        quarantine.saw("a", failures=1)
    assert not quarantine.holds("a")
    quarantine.saw("a", failures=1)
    assert quarantine.holds("a")
    assert not quarantine.holds("b")
    assert len(quarantine) == 1
    clock.now += WINDOW_SECONDS / 4  # three have faded to 2.3
    assert not quarantine.holds("a")
    for _ in range(30):
        quarantine.saw("a", failures=1)
    clock.now += 2 * WINDOW_SECONDS  # 32.3 fade to 4.4
    assert quarantine.holds("a")
    clock.now += WINDOW_SECONDS
    assert not quarantine.holds("a")
    assert len(quarantine) == 0


def test_many_good_images_excuse_a_few_bad_ones():
    quarantine = Quarantine(Clock())
    quarantine.saw("proxy", images=500, failures=0)
    quarantine.saw("proxy", images=5, failures=5)
    assert not quarantine.holds("proxy")  # 1 %
    quarantine.saw("proxy", images=10, failures=10)
    assert quarantine.holds("proxy")  # 2.9 %


def test_nobody_is_never_held():
    quarantine = Quarantine(Clock())
    quarantine.saw(None, images=9, failures=9)
    assert not quarantine.holds(None)
    assert len(quarantine) == 0


def test_sources_are_bounded_the_longest_unseen_forgotten():
    quarantine = Quarantine(Clock())
    quarantine.saw("first", failures=9)
    quarantine.saw("second", failures=9)
    for number in range(MAX_SOURCES - 2):
        quarantine.saw(str(number))
    quarantine.saw("first")
    quarantine.saw("one more")
    assert quarantine.holds("first")
    assert not quarantine.holds("second")


def test_threads_lose_no_count():
    quarantine = Quarantine(Clock())

    def work() -> None:
        for _ in range(2000):
            quarantine.saw("a", images=1, failures=1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    quarantine.saw("a", images=8000 * 49)  # exactly 2 % now, had a count been lost it would be less
    assert quarantine.holds("a")
