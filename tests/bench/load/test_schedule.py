"""When requests start: on a schedule that is drawn before anything is sent."""

import itertools
import statistics

import pytest

from milkweed.bench.load.plan import arrivals


def test_poisson_arrivals_have_their_rate_and_exponential_gaps() -> None:
    starts = list(arrivals("poisson", 500, 40, seed=3))
    assert starts == sorted(starts)
    assert starts[0] > 0
    assert starts[-1] < 40
    assert len(starts) == pytest.approx(20_000, abs=4 * 20_000**0.5)
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert statistics.fmean(gaps) == pytest.approx(1 / 500, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(1 / 500, rel=0.05)  # of an exponential: its mean
    assert sum(gap > 2 / 500 for gap in gaps) / len(gaps) == pytest.approx(2.718**-2, abs=0.01)


def test_arrivals_repeat_with_their_seed_alone() -> None:
    assert list(arrivals("poisson", 100, 1, seed=1)) == list(arrivals("poisson", 100, 1, seed=1))
    assert list(arrivals("poisson", 100, 1, seed=1)) != list(arrivals("poisson", 100, 1, seed=2))


def test_fixed_arrivals_have_equal_gaps() -> None:
    assert list(arrivals("fixed", 4, 1.25, seed=0)) == [0, 0.25, 0.5, 0.75, 1.0]


def test_a_day_of_arrivals_is_not_drawn_at_once() -> None:
    assert 0 < next(arrivals("poisson", 1e6, 86_400, seed=0)) < 1e-3


@pytest.mark.parametrize(
    ("kind", "rate", "words"), [("poisson", 0, "rate 0: must be above 0"), ("sometimes", 1, "arrivals 'sometimes'")]
)
def test_what_cannot_be_is_refused(kind: str, rate: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        next(arrivals(kind, rate, 1, seed=0))
