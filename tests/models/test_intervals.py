"""Intervals of shares, by their equation."""

import numpy as np
import pytest

from milkweed.models.intervals import share_interval


def test_the_interval_is_wilsons() -> None:
    """Both ends solve |share - p| = z sqrt(p (1 - p) / n)."""
    for count, total in ((0, 5), (3, 7), (98, 100), (40, 40)):
        for end in share_interval(count, total):
            off = abs(count / total - end)
            assert off == pytest.approx(1.959964 * np.sqrt(end * (1 - end) / total), abs=1e-7)
        low, high = share_interval(count, total)
        assert 0 <= low <= count / total <= high <= 1
