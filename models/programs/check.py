"""Refuses programs of files that would lead the kernels out of their memory."""

from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...kernels.cpu.program import (
    Attention,
    Branch,
    Convolution,
    Embed,
    Factor,
    Grid,
    Head,
    Merge,
    Norm,
    Operator,
    Performer,
    Program,
    Pyramid,
)

_MOST = 1 << 24
"""No number of channels, tokens or places is larger."""

MOST_SIDE = 4096


def check(program: Program) -> None:
    """Raise ValueError where shapes and places of a program of floats do not fit each other; names the operator."""
    walk = _Walk(program)
    for place, operator in enumerate(program.operators):
        try:
            walk.check(operator)
        except ValueError as error:
            raise ValueError(f"operator {place} ({type(operator).__name__}): {error}") from None
    walk.check_head(program.head)


class _Walk:
    """What there is behind each operator.

    Args:
        tokens, width: of the stream; 0 before there is one.
        channels: of what the next factor reads; 0 where it can read nothing.
        grid: side and channels of what the next convolutions read.
        attended: heads and head dim of the last attention.
    """

    def __init__(self, program: Program) -> None:
        self.tokens = self.width = self.channels = 0
        self.grid: tuple[int, int] | None = None
        self.attended: tuple[int, int] | None = None
        embed = program.embed
        _require(_whole(embed.size, 1, MOST_SIDE), f"embed: images of {embed.size} px")
        if isinstance(embed, Embed):
            self._embed(embed)
        else:
            self.grid = embed.size, 3

    def _embed(self, embed: Embed) -> None:
        _require(_is_float(embed.weight, embed.bias, embed.start), "embed: not of floats")
        self.tokens, self.width = embed.start.shape
        patch = embed.weight.shape[-1]
        fits = embed.weight.shape == (self.width, 3, patch, patch) and 0 < patch <= embed.size
        _require(fits, "embed: its weight's shape")
        fits = embed.bias.shape == (self.width,) and self.tokens >= (embed.size // patch) ** 2
        _require(fits, "embed: its start's shape")

    def check(self, operator: Operator) -> None:
        """Check one operator, and go on behind it."""
        if isinstance(operator, Norm):
            self._norm(operator)
        elif isinstance(operator, Factor):
            self._factor(operator)
        elif isinstance(operator, Attention | Performer):
            self._attention(operator)
        elif isinstance(operator, Merge):
            self._merge(operator)
        elif isinstance(operator, Grid):
            side = isqrt(max(self.tokens - operator.prefix, 0))
            _require(_whole(operator.prefix, 0, self.tokens), f"a prefix of {operator.prefix}")
            _require(side**2 == self.tokens - operator.prefix > 0, f"{self.tokens} tokens are no grid")
            self.grid = side, self.width
        elif isinstance(operator, Pyramid):
            found = {self._convolution(each, self.grid)[0] for each in operator.convolutions}
            _require(len(found) == 1 and not any(e.factor.adds for e in operator.convolutions), f"of sides {found}")
            self.tokens, self.channels = found.pop() ** 2, 0
            self.width = sum(each.factor.width for each in operator.convolutions)
        else:
            self._branch(operator)

    def check_head(self, head: Head) -> None:
        """Check the last operator."""
        self.channels = self.width
        if head.norm is not None:
            self._norm(head.norm)
        _require(head.mean_from is None or _whole(head.mean_from, 0, self.tokens - 1), f"head: {head.mean_from}")
        _require(not head.classifier.adds, "head: it adds to the stream")
        self._factor(head.classifier)

    def _norm(self, norm: Norm) -> None:
        _require(norm.weight.shape == norm.bias.shape == (self.width,), f"not {self.width} channels")
        _require(_is_float(norm.weight, norm.bias) and norm.eps > 0, "its numbers")
        self.channels = self.width

    def _factor(self, factor: Factor) -> None:
        _require(self.channels > 0, "there is nothing that it reads")
        _check_factor(factor, self.channels)
        _require(not factor.adds or factor.width == self.width, f"adds {factor.width} channels to {self.width}")
        self.channels = 0 if factor.adds else factor.width

    def _attention(self, operator: Attention | Performer) -> None:
        if isinstance(operator, Performer):
            _require(_is_float(operator.w) and operator.w.ndim == 2 and operator.eps > 0, "its numbers")
            inner = self.width = operator.w.shape[1]
        else:
            sizes = operator.heads, operator.head_dim
            _require(all(_whole(size, 1, _MOST) for size in sizes), f"{sizes}")
            inner, self.attended = operator.heads * operator.head_dim, sizes
        _require(self.channels == 3 * inner, f"of {self.channels} channels")
        self.channels = inner
        if isinstance(operator, Attention) and operator.first:
            self.tokens = 1

    def _merge(self, merge: Merge) -> None:
        fits = _whole(merge.prefix, 0, self.tokens) and _whole(merge.count, 1, self.tokens)
        fits = fits and 2 * merge.count < self.tokens - merge.prefix
        fits = fits and (merge.heads, merge.head_dim) == self.attended
        _require(fits, f"merges {merge.count} of {self.tokens} tokens")
        self.tokens, self.channels = self.tokens - merge.count, 0

    def _branch(self, branch: Branch) -> None:
        given, (*others, last) = self.grid, branch.convolutions
        for each in branch.convolutions:
            given = self._convolution(each, given)
        _require(_whole(branch.prefix, 0, self.tokens), f"a prefix of {branch.prefix}")
        fits = given == (isqrt(self.tokens - branch.prefix), self.width) and last.factor.adds
        fits = fits and last.across**2 == self.tokens - branch.prefix and not any(each.factor.adds for each in others)
        _require(fits, f"adds {given} to {self.tokens} tokens")
        self.grid = None  # the kernels may not have made one, where the branch reads the stream itself

    def _convolution(self, convolution: Convolution, grid: tuple[int, int] | None) -> tuple[int, int]:
        """Check a convolution of a grid; return side and channels of what it gives."""
        sizes = [getattr(convolution, name) for name in ("side", "channels", "kernel", "stride", "dilation", "groups")]
        whole = all(_whole(size, 1, _MOST) for size in sizes) and _whole(convolution.padding, 0, MOST_SIDE)
        _require(whole and (sizes[0], sizes[1]) == grid and convolution.across > 0, f"a convolution {sizes} of {grid}")
        taps = convolution.kernel**2 * convolution.channels
        _require(convolution.factor.inputs.size == taps, f"a convolution of {convolution.factor.inputs.size} taps")
        _check_factor(convolution.factor, taps)
        return convolution.across, convolution.factor.width


def _check_factor(factor: Factor, channels: int) -> None:
    blocks, outs, ins = factor.weight.shape
    _require(factor.inputs.shape == (blocks, ins) and factor.outputs.shape == (blocks, outs), "its places")
    for places, most in ((factor.inputs, max(channels, blocks * ins)), (factor.outputs, blocks * outs)):
        right = places.dtype.kind == "i" and places.min() >= 0 and places.max() < most
        _require(right and np.bincount(places.ravel()).max() == 1, f"a place outside 0..{most - 1} or twice")
    right = _whole(factor.width, 1, blocks * outs) and factor.bias.shape == (factor.width,)
    _require(right and _is_float(factor.bias), "its bias")
    _require(factor.quantiser is None and _is_float(factor.weight), f"its weight is {factor.weight.dtype}")


def _is_float(*arrays: NDArray[Any]) -> bool:
    return all(array.dtype.kind == "f" and bool(np.isfinite(array).all()) for array in arrays)


def _whole(number: Any, least: int, most: int) -> bool:
    return type(number) is int and least <= number <= most


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise ValueError(problem)
