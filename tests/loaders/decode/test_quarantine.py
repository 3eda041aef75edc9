"""Suspects: who breaks batches often enough is held, and is let go again."""

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
    suspects = Quarantine(clock)
    for _ in range(2):
        suspects.saw("a", failures=1)
    assert not suspects.holds("a")
    suspects.saw("a", failures=1)
    assert suspects.holds("a")
    assert not suspects.holds("b")
    assert len(suspects) == 1
    clock.now += WINDOW_SECONDS / 4  # three have faded to 2.3
    assert not suspects.holds("a")
    for _ in range(30):
        suspects.saw("a", failures=1)
    clock.now += 2 * WINDOW_SECONDS  # 32.3 fade to 4.4
    assert suspects.holds("a")
    clock.now += WINDOW_SECONDS
    assert not suspects.holds("a")
    assert len(suspects) == 0


def test_many_good_images_excuse_a_few_bad_ones():
    suspects = Quarantine(Clock())
    suspects.saw("proxy", images=500, failures=0)
    suspects.saw("proxy", images=5, failures=5)
    assert not suspects.holds("proxy")  # 1 %
    suspects.saw("proxy", images=10, failures=10)
    assert suspects.holds("proxy")  # 2.9 %


def test_nobody_is_never_held():
    suspects = Quarantine(Clock())
    suspects.saw(None, images=9, failures=9)
    assert not suspects.holds(None)
    assert len(suspects) == 0


def test_sources_are_bounded_the_longest_unseen_forgotten():
    suspects = Quarantine(Clock())
    suspects.saw("first", failures=9)
    suspects.saw("second", failures=9)
    for number in range(MAX_SOURCES - 2):
        suspects.saw(str(number))
    suspects.saw("first")
    suspects.saw("one more")
    assert suspects.holds("first")
    assert not suspects.holds("second")


def test_threads_lose_no_count():
    suspects = Quarantine(Clock())

    def work() -> None:
        for _ in range(2000):
            suspects.saw("a", images=1, failures=1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    suspects.saw("a", images=8000 * 49)  # exactly 2 % now, had a count been lost it would be less
    assert suspects.holds("a")
