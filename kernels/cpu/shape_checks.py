"""The state that operators of a program leave behind, and the checks that their rules have in common."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .program import Convolution, Factor

MAX_CHANNELS, MAX_HEAD_DIM, MAX_SIDE, MAX_KERNEL = 1 << 20, 1 << 12, 1 << 12, 31


@dataclass(frozen=True)
class State:
    """What there is behind an operator.

    Args:
        tokens, width: of the stream; 0 before there is one.
        channels: of what the next factor or attention reads.
        giver: the kind of operator that gave them; None where nothing waits to be read.
        grid: side and channels of what the next convolutions read.
        unread: whether no convolution has read the grid yet.
        keys: heads and head dim of the attention whose keys a merge may read, as many as there are tokens.
        merged: tokens that have become part of others.
        windowed: whether the last attention's tokens lie in windows.
        kept: channels that are kept for the next attention.
        transposed: whether the rows that the next factor reads are channels of the stream, not tokens.
    """

    tokens: int = 0
    width: int = 0
    channels: int = 0
    giver: type | None = None
    grid: tuple[int, int] | None = None
    unread: bool = False
    keys: tuple[int, int] | None = None
    merged: int = 0
    windowed: bool = False
    kept: int = 0
    transposed: bool = False

    @property
    def sized(self) -> bool:
        """Whether tokens may stand for several."""
        return self.merged > 0

    @property
    def rows(self) -> int:
        """Rows of what the next factor reads."""
        return self.width if self.transposed else self.tokens


def convolved(convolution: Convolution, grid: tuple[int, int] | None) -> tuple[int, int]:
    """Check a convolution of a grid; return side and channels of what it gives."""
    sizes = [getattr(convolution, name) for name in ("side", "channels", "kernel", "stride", "dilation", "groups")]
    right = all(whole(size, 1, MAX_CHANNELS) for size in sizes) and whole(convolution.padding, 0, MAX_SIDE)
    require(right and (sizes[0], sizes[1]) == grid and convolution.across > 0, f"a convolution {sizes} of {grid}")
    factor, taps, channels = convolution.factor, convolution.kernel**2, convolution.channels
    check_factor(factor, taps * channels)
    blocks, _, inputs = factor.weight.shape
    require(
        blocks * inputs == taps * channels and channels % blocks == 0, f"a convolution of {factor.inputs.size} taps"
    )
    gathered = np.arange(taps)[:, None] * channels + np.arange(channels).reshape(blocks, 1, -1)
    require(np.array_equal(np.sort(factor.inputs), gathered.reshape(blocks, -1)), "blocks of other channels")
    return convolution.across, factor.width


def check_factor(factor: Factor, channels: int) -> None:
    require(factor.weight.ndim == 3 and min(factor.weight.shape) > 0, f"a weight of shape {factor.weight.shape}")
    blocks, outs, ins = factor.weight.shape
    require(factor.inputs.shape == (blocks, ins) and factor.outputs.shape == (blocks, outs), "its places")
    require(channels <= blocks * ins <= MAX_CHANNELS, f"reads {blocks * ins} of {channels} channels")
    for places in (factor.inputs, factor.outputs):
        right = places.dtype == np.int64 and places.min() >= 0 and places.max() < places.size <= MAX_CHANNELS
        require(right and np.bincount(places.ravel()).max() == 1, f"a place outside 0..{places.size - 1} or twice")
    require(whole(factor.width, 1, blocks * outs) and factor.bias.shape == (factor.width,), "its bias")
    flags = factor.gelu, factor.silu, factor.adds
    require(all(isinstance(flag, bool) for flag in flags) and isinstance(factor.name, str), f"{flags} {factor.name!r}")
    require(not factor.gelu or not (factor.silu or factor.adds), "GELU, and SiLU or what adds")


def whole(number: Any, least: int, most: int) -> bool:
    return type(number) is int and least <= number <= most


def require(condition: bool, problem: str) -> None:
    if not condition:
        raise ValueError(problem)
