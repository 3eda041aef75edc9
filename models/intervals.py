"""Intervals of shares."""

from math import sqrt

Z = 1.959964
"""The 97.5 % quantile of the normal distribution."""


def share_interval(count: int, total: int) -> tuple[float, float]:
    """Return the ends of the 95 % score interval of a share (Wilson 1927, JASA 22); `total` is 1 or more."""
    share = count / total
    half = Z * sqrt(share * (1 - share) / total + (Z / (2 * total)) ** 2)
    middle, whole = share + Z * Z / (2 * total), 1 + Z * Z / total
    return max(0.0, (middle - half) / whole), min(1.0, (middle + half) / whole)
