"""A token bucket: limits a rate, allows a burst, and says when to come back."""

import math


class TokenBucket:
    """Holds up to `burst` tokens and gains `rate` a second. Belongs to one thread.

    Args:
        rate: tokens a second.
        burst: the most tokens it holds, and what it starts with; None is a second's worth.
        now: monotonic seconds.
    """

    __slots__ = ("_at", "_tokens", "burst", "rate")

    def __init__(self, rate: float, burst: int | None, now: float) -> None:
        self.rate = rate
        self.burst = float(burst or max(1, math.ceil(rate)))
        self._tokens = self.burst
        self._at = now

    def take(self, count: int, now: float) -> float:
        """Take tokens.

        A full bucket gives more than `burst` and then owes the rest, so that the rate holds.

        Returns:
            0 where they were taken; else the seconds until they could be.
        """
        tokens = min(self.burst, self._tokens + (now - self._at) * self.rate)
        self._at = now
        needed = min(count, self.burst)
        if tokens >= needed:
            self._tokens = tokens - count
            return 0.0
        self._tokens = tokens
        return (needed - tokens) / self.rate
