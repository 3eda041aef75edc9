"""A counter-based random number generator: a number is a function of seed, epoch, image index and its position.

So an image gets the same numbers in whatever process and order they are asked for.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_GOLDEN, _FIRST, _SECOND = map(np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def random_bits(seed: int, epoch: int, indices: NDArray[np.int64], count: int) -> NDArray[np.uint64]:
    """Return `count` numbers of 64 random bits for each image: (len(indices), count).

    Seed, epoch, index and position go in turn through the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
    """
    with np.errstate(over="ignore"):  # the arithmetic is modulo 2^64
        run = _mixed(_mixed(np.asarray(seed % 2**64, np.uint64)) + np.uint64(epoch))
        images = _mixed(run + indices.astype(np.uint64))
        return _mixed(images[:, None] + np.arange(count, dtype=np.uint64))


def random_uniform(seed: int, epoch: int, indices: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Return the same as uniform numbers 0 <= u < 1 of 53 bits."""
    return (random_bits(seed, epoch, indices, count) >> np.uint64(11)).astype(np.float64) / 2.0**53


def epoch_order(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    """Return the permutation of 0..count-1 that belongs to an epoch."""
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(count)


def _mixed(bits: NDArray[Any]) -> NDArray[np.uint64]:
    bits = np.asarray(bits, np.uint64) + _GOLDEN
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    return bits ^ (bits >> np.uint64(31))
