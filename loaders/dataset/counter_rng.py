"""Uniform numbers that are a function of where they are drawn: the same whatever process or order draws them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_GOLDEN, _FIRST, _SECOND = map(np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def draw_bits(seed: int, epoch: int, indices: NDArray[np.int64], count: int) -> NDArray[np.uint64]:
    """64 random bits for each of `count` draws of each image: (len(indices), count).

    The finaliser of SplitMix64 (Steele, Lea, Flood 2014), once for each part of the place.
    """
    with np.errstate(over="ignore"):  # the arithmetic is modulo 2^64
        run = _mixed(_mixed(np.asarray(seed % 2**64, np.uint64)) + np.uint64(epoch))
        images = _mixed(run + indices.astype(np.uint64))
        return _mixed(images[:, None] + np.arange(count, dtype=np.uint64))


def draw_uniform(seed: int, epoch: int, indices: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Uniform in 0 <= u < 1, with 53 bits."""
    return (draw_bits(seed, epoch, indices, count) >> np.uint64(11)).astype(np.float64) / 2.0**53


def epoch_order(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    """A permutation of 0..count-1 for an epoch."""
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(count)


def _mixed(bits: NDArray[Any]) -> NDArray[np.uint64]:
    bits = np.asarray(bits, np.uint64) + _GOLDEN
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    return bits ^ (bits >> np.uint64(31))
