"""Shape inference: which operators of a program may follow which, what each needs, and what it leaves behind.

It is the one table that the checker of files, the assembler and the reference evaluator read.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any

import numpy as np

from .program import (
    Attention,
    Branch,
    Convolution,
    Embed,
    Factor,
    Grid,
    Head,
    JoinedHead,
    Merge,
    Norm,
    Performer,
    Pixels,
    Program,
    Pyramid,
    Renew,
)

MAX_TOKENS = 1 << 16
"""A kernel's products of tokens and channels have to fit 32 bits."""

MAX_CHANNELS, MAX_HEAD_DIM, MAX_SIDE = 1 << 20, 1 << 12, 1 << 12

_READERS: dict[type, tuple[type, ...]] = {
    Norm: (Factor,),
    Factor: (Factor, Attention, Performer),
    Attention: (Factor, Branch, Renew),
    Performer: (Factor, Branch),
}
"""What may follow an operator that gives channels, until a factor or an attention has read them."""

_UNREAD = (Norm, Renew, Grid, Pyramid, Branch, Merge)
"""What may follow where nothing waits to be read."""


@dataclass(frozen=True)
class State:
    """What there is behind an operator.

    Args:
        tokens, width: of the stream; 0 before there is one.
        channels: of what the next factor or attention reads.
        giver: the kind of operator that gave them; None where nothing waits to be read.
        grid: side and channels of what the next convolutions read.
        unread: whether no convolution has read the grid yet.
        keys: heads and head dim of the attention whose keys a merge may read: one key for each token.
        sized: whether tokens may stand for several, since some were merged.
    """

    tokens: int = 0
    width: int = 0
    channels: int = 0
    giver: type | None = None
    grid: tuple[int, int] | None = None
    unread: bool = False
    keys: tuple[int, int] | None = None
    sized: bool = False


def infer_shapes(program: Program) -> list[State]:
    """Return the state before the first operator, and behind each.

    Raises:
        ValueError: operators, shapes or places do not fit each other; one line that names the operator.
    """
    states = [_first(program.embed)]
    for place, operator in enumerate(program.operators):
        kind, before = type(operator), states[-1]
        try:
            followers = _READERS[before.giver] if before.giver else _UNREAD
            _require(kind in followers, f"follows what {' or '.join(a.__name__ for a in followers)} may follow")
            states.append(_RULES[kind](before, operator))
            _require(states[-1].tokens <= MAX_TOKENS, f"{states[-1].tokens} tokens, at most {MAX_TOKENS} may be")
        except ValueError as error:
            raise ValueError(f"operator {place} ({kind.__name__}): {error}") from None
    _check_head(program.head, states[-1])
    return states


def _first(embed: Embed | Pixels) -> State:
    _require(_whole(embed.size, 1, MAX_SIDE), f"embed: images of {embed.size} px, at most {MAX_SIDE} may be")
    if isinstance(embed, Pixels):
        return State(grid=(embed.size, 3), unread=True)
    (tokens, width), patch = embed.start.shape, embed.weight.shape[-1]
    _require(tokens <= MAX_TOKENS, f"embed: {tokens} tokens, at most {MAX_TOKENS} may be")
    fits = embed.weight.shape == (width, 3, patch, patch) and 0 < patch <= embed.size and 0 < width <= MAX_CHANNELS
    _require(fits, f"embed: its weight's shape {embed.weight.shape}")
    fits = embed.bias.shape == (width,) and tokens >= (embed.size // patch) ** 2
    _require(fits, f"embed: its start's shape {embed.start.shape}")
    return State(tokens, width)


def _norm(state: State, norm: Norm) -> State:
    _require(norm.weight.shape == norm.bias.shape == (state.width,) != (0,), f"not {state.width} channels")
    return replace(state, channels=state.width, giver=Norm)


def _renew(state: State, renew: Renew) -> State:
    _norm(state, renew.norm)
    return state


def _factor(state: State, factor: Factor) -> State:
    _require(not (factor.silu and factor.adds), "SiLU of what adds, outside of a branch")
    _check_factor(factor, state.channels)
    if not factor.adds:
        return replace(state, channels=factor.width, giver=Factor)
    _require(factor.width == state.width, f"adds {factor.width} channels to {state.width}")
    return replace(state, channels=0, giver=None)


def _attention(state: State, attention: Attention) -> State:
    heads, head_dim = attention.heads, attention.head_dim
    fits = _whole(heads, 1, MAX_CHANNELS) and _whole(head_dim, 1, MAX_HEAD_DIM) and isinstance(attention.first, bool)
    _require(fits and state.giver is Factor, f"{heads} heads of {head_dim}, which is at most {MAX_HEAD_DIM}")
    _require(state.channels == 3 * heads * head_dim, f"of {state.channels} channels")
    tokens = 1 if attention.first else state.tokens
    return replace(state, tokens=tokens, channels=heads * head_dim, giver=Attention, keys=(heads, head_dim))


def _performer(state: State, performer: Performer) -> State:
    features, width = performer.w.shape
    _require(features > 0 and state.channels == 3 * width, f"of {state.channels} channels")
    return replace(state, width=width, channels=width, giver=Performer, keys=None)


def _merge(state: State, merge: Merge) -> State:
    _require(_whole(merge.prefix, 0, state.tokens), f"a prefix of {merge.prefix}")
    patches = state.tokens - merge.prefix
    most = (patches - 1) // 2
    said = f"{merge.count} of {patches} tokens are to be merged: at most {most} can be"
    _require(_whole(merge.count, 1, most), said)
    _require((merge.heads, merge.head_dim) == state.keys, f"keys are {state.keys}")
    return replace(state, tokens=state.tokens - merge.count, keys=None, sized=True)


def _grid(state: State, grid: Grid) -> State:
    _require(_whole(grid.prefix, 0, state.tokens), f"a prefix of {grid.prefix}")
    side = isqrt(state.tokens - grid.prefix)
    _require(side**2 == state.tokens - grid.prefix > 0, f"{state.tokens} tokens are no grid")
    _require(not state.unread, "nothing has read the grid before it")
    return replace(state, grid=(side, state.width), unread=True)


def _pyramid(state: State, pyramid: Pyramid) -> State:
    sides = {_convolved(conv, state.grid)[0] for conv in pyramid.convolutions}
    _require(len(sides) == 1, f"of sides {sides}")
    _require(not any(conv.factor.adds or conv.factor.silu for conv in pyramid.convolutions), "it adds, or has SiLU")
    width = sum(conv.factor.width for conv in pyramid.convolutions)
    return State(sides.pop() ** 2, width, grid=state.grid)


def _branch(state: State, branch: Branch) -> State:
    grid, (*others, last) = state.grid, branch.convolutions
    for conv in branch.convolutions:
        grid = _convolved(conv, grid)
    _require(_whole(branch.prefix, 0, state.tokens), f"a prefix of {branch.prefix}")
    fits = grid == (last.across, state.width) and last.across**2 == state.tokens - branch.prefix
    fits = fits and last.factor.adds and not any(conv.factor.adds for conv in others)
    _require(fits, f"adds {grid} to {state.tokens} tokens")
    # There may be no grid: kernels of a branch may read the stream itself.
    return replace(state, grid=None, unread=False)


_RULES: dict[type, Callable[[State, Any], State]] = {
    Norm: _norm,
    Renew: _renew,
    Factor: _factor,
    Attention: _attention,
    Performer: _performer,
    Merge: _merge,
    Grid: _grid,
    Pyramid: _pyramid,
    Branch: _branch,
}


def _check_head(head: Head, state: State) -> None:
    _require(state.giver is None and not state.unread, "head: nothing reads what the last operators give")
    _require(head.mean_from is None or _whole(head.mean_from, 0, state.tokens - 1), f"head: {head.mean_from}")
    if isinstance(head, JoinedHead):
        left = state.tokens - (state.tokens if head.mean_from is None else head.mean_from)
        fits = left > 0 and (head.count is None or _whole(head.count, 1, left))
        _require(fits, f"head: it joins the mean of {head.count} of {left} tokens")
        state = replace(state, width=2 * state.width)
    state = replace(state, channels=state.width) if head.norm is None else _norm(state, head.norm)
    _require(state.channels > 0, "head: there is nothing that it reads")
    _require(not head.classifier.adds, "head: it adds to the stream")
    _factor(state, head.classifier)


def _convolved(convolution: Convolution, grid: tuple[int, int] | None) -> tuple[int, int]:
    """Check a convolution of a grid; return side and channels of what it gives."""
    sizes = [getattr(convolution, name) for name in ("side", "channels", "kernel", "stride", "dilation", "groups")]
    whole = all(_whole(size, 1, MAX_CHANNELS) for size in sizes) and _whole(convolution.padding, 0, MAX_SIDE)
    _require(whole and (sizes[0], sizes[1]) == grid and convolution.across > 0, f"a convolution {sizes} of {grid}")
    factor, taps, channels = convolution.factor, convolution.kernel**2, convolution.channels
    _check_factor(factor, taps * channels)
    blocks, _, inputs = factor.weight.shape
    _require(
        blocks * inputs == taps * channels and channels % blocks == 0, f"a convolution of {factor.inputs.size} taps"
    )
    gathered = np.arange(taps)[:, None] * channels + np.arange(channels).reshape(blocks, 1, -1)
    _require(np.array_equal(np.sort(factor.inputs), gathered.reshape(blocks, -1)), "blocks of other channels")
    return convolution.across, factor.width


def _check_factor(factor: Factor, channels: int) -> None:
    _require(factor.weight.ndim == 3 and min(factor.weight.shape) > 0, f"a weight of shape {factor.weight.shape}")
    blocks, outs, ins = factor.weight.shape
    _require(factor.inputs.shape == (blocks, ins) and factor.outputs.shape == (blocks, outs), "its places")
    _require(channels <= blocks * ins <= MAX_CHANNELS, f"reads {blocks * ins} of {channels} channels")
    for places in (factor.inputs, factor.outputs):
        right = places.dtype == np.int64 and places.min() >= 0 and places.max() < places.size <= MAX_CHANNELS
        _require(right and np.bincount(places.ravel()).max() == 1, f"a place outside 0..{places.size - 1} or twice")
    _require(_whole(factor.width, 1, blocks * outs) and factor.bias.shape == (factor.width,), "its bias")
    flags = factor.gelu, factor.silu, factor.adds
    _require(all(isinstance(flag, bool) for flag in flags) and isinstance(factor.name, str), f"{flags} {factor.name!r}")
    _require(not factor.gelu or not (factor.silu or factor.adds), "GELU, and SiLU or what adds")


def _whole(number: Any, least: int, most: int) -> bool:
    return type(number) is int and least <= number <= most


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise ValueError(problem)
