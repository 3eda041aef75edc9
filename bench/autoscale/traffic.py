"""Traffic: images a second over a day, with bursts."""

import math
from dataclasses import dataclass, replace

import numpy as np

from .curve import Floats

DAY_SECONDS, HOUR_SECONDS = 86_400, 3_600
QUIETEST_HOUR, TROUGH_SHARE = 4, 0.3
NOISE, NOISE_SECONDS = 0.03, 60
"""Of the traffic around its course: a standard deviation, and how long it keeps its sign."""


@dataclass(frozen=True)
class Traffic:
    """Images a second, one value a second, (seconds,), and what begins when: names and seconds, in order."""

    rates: Floats
    events: tuple[tuple[str, int], ...] = ()

    def times(self, name: str, at: int, factors: Floats) -> "Traffic":
        """So many times as much from then on; an event of that name."""
        rates = self.rates.copy()
        rates[at : at + len(factors)] *= factors[: len(rates) - at]
        return replace(self, rates=rates, events=(*self.events, (name, at)))

    def between(self, begin: int, end: int) -> "Traffic":
        """A part of it, in seconds."""
        events = tuple((name, at - begin) for name, at in self.events if begin <= at < end)
        return Traffic(self.rates[begin:end], events)


def constant(rate: float, seconds: int) -> Traffic:
    """As much all the time."""
    return Traffic(np.full(seconds, float(rate)))


def day(peak: float, rng: np.random.Generator) -> Traffic:
    """A day's sine, quietest at 4 and highest at 16 o'clock, with noise and bursts.

    At 3: three times as much within 10 s, for 15 minutes. At 5: half as much again within 10 s, for an hour: to the
    replicas that are left it is the same as if a third of them, a zone, were gone. At 9: a crowd, twice as much within
    a minute, then fewer and fewer. From 21 to 22: bursts at random moments, exponential in length and height.

    Args:
        peak: images a second.
    """
    hours = np.arange(DAY_SECONDS) / HOUR_SECONDS
    share = (1 - np.cos(2 * math.pi * (hours - QUIETEST_HOUR) / 24)) / 2
    knots = np.arange(0, DAY_SECONDS + 1, NOISE_SECONDS)
    noise = np.interp(np.arange(DAY_SECONDS), knots, rng.normal(0, NOISE, len(knots)))
    course = Traffic(peak * (TROUGH_SHARE + (1 - TROUGH_SHARE) * share) * np.exp(noise))
    course = course.times("3 times as much within 10 s", 3 * HOUR_SECONDS, _step(3.0, 900))
    course = course.times("half as much again within 10 s", 5 * HOUR_SECONDS, _step(1.5, HOUR_SECONDS))
    course = course.times("a crowd, twice as much", 9 * HOUR_SECONDS, _crowd(2.0, HOUR_SECONDS))
    return course.times("bursts at random", 21 * HOUR_SECONDS, _bursts(HOUR_SECONDS, rng))


def trial(rate: float, rng: np.random.Generator) -> Traffic:
    """Three hours to compare settings by: three times as much for 15 minutes, half as much again for 20, random bursts.

    Args:
        rate: while there is none of them, images a second.
    """
    course = constant(rate, 3 * HOUR_SECONDS)
    course = course.times("3 times as much within 10 s", 1800, _step(3.0, 900))
    course = course.times("half as much again within 10 s", 5100, _step(1.5, 1200))
    return course.times("bursts at random", 2 * HOUR_SECONDS, _bursts(HOUR_SECONDS, rng))


def _step(factor: float, seconds: int) -> Floats:
    clock = np.arange(seconds)
    return np.asarray(1 + (factor - 1) * np.clip(np.minimum(clock, seconds - clock) / 10, 0, 1))


def _crowd(factor: float, seconds: int, rise: float = 60, fall: float = 600) -> Floats:
    clock = np.arange(seconds)
    return np.asarray(1 + (factor - 1) * np.where(clock < rise, clock / rise, np.exp((rise - clock) / fall)))


def _bursts(seconds: int, rng: np.random.Generator, every: float = 240) -> Floats:
    factors = np.ones(seconds)
    for begin in rng.uniform(0, seconds, rng.poisson(seconds / every)):
        factors[int(begin) : int(begin + 1 + rng.exponential(every / 4))] += rng.exponential(0.5)
    return factors
