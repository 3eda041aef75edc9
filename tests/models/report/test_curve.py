"""Which candidates are best at their size, against the plain definition."""

import random

import pytest

from milkweed.models.report import Candidate
from milkweed.models.report.curve import best_at_size, candidate_text, measured, measures


def candidates(seed: int) -> list[Candidate]:
    rng = random.Random(seed)
    return [
        Candidate(
            label=str(number),
            # Few values, so that sizes and figures coincide.
            share=rng.randint(1, 6) / 6,
            parameters=number,
            kl=rng.choice([None, rng.randint(0, 5) / 5]),
            top1=float(rng.randint(0, 6)),
        )
        for number in range(20)
    ]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("name", "sign"), [("kl", -1), ("top1", 1)])
def test_best_at_size_is_what_nothing_as_small_matches(seed: int, name: str, sign: int) -> None:
    curve = candidates(seed)
    best = best_at_size(curve, name)
    found = measured(curve, name)
    values = [sign * getattr(candidate, name) for candidate in best]
    for candidate, value in found:
        rivals = [v for c, v in found if c.share < candidate.share]
        wins = all(sign * value > sign * v for v in rivals)
        wins &= all(sign * value >= sign * v for c, v in found if c.share == candidate.share)
        assert ((candidate.share, sign * value) in [(c.share, v) for c, v in zip(best, values, strict=True)]) == wins
    assert [c.share for c in best] == sorted({c.share for c in best})
    assert values == sorted(set(values))


def test_measures() -> None:
    one = Candidate(label="a", share=0.5, parameters=1)
    assert measures([one]) == measures([]) == []
    assert measures([one, Candidate(label="b", share=0.5, parameters=1, kl=0.0)]) == ["kl"]
    both = Candidate(label="c", share=0.5, parameters=1, kl=0.1, agreement=90.0, top1=80.0)
    assert measures([one, both]) == ["top1", "kl"]
    assert measures([Candidate(label="d", share=0.5, parameters=1, agreement=90.0)]) == ["agreement"]
    assert candidate_text(both) == "c: 1 parameters (50.0 %), top-1 80.0 %, agreement 90.0 %, KL 0.100"
