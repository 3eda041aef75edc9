"""What each operator of a program needs of the state before it, and the state that it leaves behind."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any

import numpy as np

from .program import (
    Attention,
    BiasedAttention,
    Branch,
    Convolution,
    Depthwise,
    Factor,
    Grid,
    Merge,
    Performer,
    Pyramid,
    ResponseNorm,
    WindowedAttention,
)
from .row_operators import (
    AddValues,
    Glu,
    InnerNorm,
    Join,
    NewStream,
    Norm,
    PostNorm,
    QkNorm,
    ReadStream,
    Renew,
    RmsNorm,
    Rotary,
)

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
        keys: heads and head dim of the attention whose keys a merge may read: one key for each token.
        sized: whether tokens may stand for several, since some were merged.
        windowed: whether the last attention's tokens lie in windows.
    """

    tokens: int = 0
    width: int = 0
    channels: int = 0
    giver: type | None = None
    grid: tuple[int, int] | None = None
    unread: bool = False
    keys: tuple[int, int] | None = None
    sized: bool = False
    windowed: bool = False


def norm_rule(state: State, norm: Norm) -> State:
    require(norm.weight.shape == norm.bias.shape == (state.width,) != (0,), f"not {state.width} channels")
    return replace(state, channels=state.width, giver=Norm)


def renew_rule(state: State, renew: Renew) -> State:
    norm_rule(state, renew.norm)
    return state


def factor_rule(state: State, factor: Factor) -> State:
    require(not (factor.silu and factor.adds), "SiLU of what adds, outside of a branch")
    check_factor(factor, state.channels)
    if not factor.adds:
        return replace(state, channels=factor.width, giver=Factor)
    require(factor.width == state.width, f"adds {factor.width} channels to {state.width}")
    return replace(state, channels=0, giver=None)


def read_stream_rule(state: State, _: ReadStream) -> State:
    require(state.width > 0, "there is no stream")
    return replace(state, channels=state.width, giver=ReadStream)


def post_norm_rule(state: State, add: PostNorm) -> State:
    require(state.channels == state.width, f"adds {state.channels} channels to {state.width}")
    norm_rule(state, add.norm)
    return replace(state, channels=0, giver=None)


def inner_norm_rule(state: State, inner: InnerNorm) -> State:
    shape, least = inner.norm.weight.shape, 1 if state.giver in (Factor, Glu) else state.channels
    right = len(shape) == 1 and shape == inner.norm.bias.shape and whole(shape[0], least, state.channels)
    require(right, f"of {shape} of {state.channels} channels")
    return replace(state, giver=InnerNorm)


def glu_rule(state: State, _: Glu) -> State:
    require(state.channels % 2 == 0, f"of {state.channels} channels")
    return replace(state, channels=state.channels // 2, giver=Glu)


def qk_norm_rule(state: State, norm: QkNorm) -> State:
    shapes = {part.shape for part in (norm.queries.weight, norm.queries.bias, norm.keys.weight, norm.keys.bias)}
    right = whole(norm.heads, 1, MAX_CHANNELS) and shapes == {(state.channels // 3,)}
    require(right and state.channels % (3 * norm.heads) == 0, f"of {shapes} of {state.channels} channels")
    require(type(norm.queries) is type(norm.keys) and norm.queries.eps == norm.keys.eps, "two kinds of norms")
    return replace(state, giver=QkNorm)


def rotary_rule(state: State, rotary: Rotary) -> State:
    heads, shape = rotary.heads, rotary.cos.shape
    right = whole(heads, 1, MAX_CHANNELS) and rotary.cos.shape == rotary.sin.shape and len(shape) == 3
    right = right and shape[0] == state.tokens and shape[1] in (1, heads) and 6 * heads * shape[2] == state.channels
    require(right and not state.sized, f"angles {shape} of {state.tokens} tokens with {state.channels} channels")
    return replace(state, giver=Rotary)


def join_rule(state: State, join: Join) -> State:
    rows = join.rows
    fits = rows.ndim == 2 and rows.size > 0 and rows.dtype == np.int64 and 0 <= rows.min() <= rows.max() < state.tokens
    require(fits and not state.sized, f"rows {rows.shape} of {state.tokens} tokens")
    channels = rows.shape[1] * state.width
    require(channels <= MAX_CHANNELS, f"{channels} channels, at most {MAX_CHANNELS} may be")
    # There is no stream until one starts.
    return replace(state, tokens=len(rows), width=0, channels=channels, giver=Join, keys=None)


def new_stream_rule(state: State, _: NewStream) -> State:
    return replace(state, width=state.channels, channels=0, giver=None, sized=False)


def add_values_rule(state: State, _: AddValues) -> State:
    heads, head_dim = state.keys or (0, 0)
    fits = heads * head_dim == state.width > 0 and not state.windowed
    require(fits, f"values of {state.keys} for {state.width} channels")
    return state


def depthwise_rule(state: State, conv: Depthwise) -> State:
    shape, side = conv.weight.shape, isqrt(state.tokens)
    fits = len(shape) == 3 and shape[0] == state.width > 0 and shape[1] == shape[2] and shape[1] % 2 == 1
    fits = fits and shape[1] <= MAX_KERNEL and conv.bias.shape == (state.width,) and side**2 == state.tokens
    require(fits and not state.sized, f"weights {shape} of {state.tokens} tokens with {state.width} channels")
    return replace(state, channels=state.width, giver=Depthwise)


def response_norm_rule(state: State, norm: ResponseNorm) -> State:
    require(norm.weight.shape == norm.bias.shape == (state.channels,), f"not {state.channels} channels")
    require(not state.sized, "of merged tokens")
    return replace(state, giver=ResponseNorm)


def windows_rule(state: State, attention: WindowedAttention) -> State:
    windows, kinds, index = attention.windows, attention.kinds, attention.index
    fits = windows.ndim == 2 and index.ndim == 3 and windows.dtype == kinds.dtype == np.int64
    fits = fits and np.array_equal(np.sort(windows, axis=None), np.arange(state.tokens)) and not attention.first
    fits = fits and kinds.shape == windows.shape[:1] and 0 <= kinds.min() <= kinds.max() < len(index)
    require(fits, f"windows {windows.shape} of {state.tokens} tokens, of kinds {kinds.shape}")
    after = biased_rule(state, attention, (len(index), windows.shape[1], windows.shape[1]))
    return replace(after, windowed=True)


def biased_rule(state: State, attention: BiasedAttention, shape: tuple[int, ...] = ()) -> State:
    table, index, tokens = attention.table, attention.index, state.tokens
    fits = table.ndim == 2 and len(table) == attention.heads and index.shape == (shape or (tokens, tokens))
    fits = fits and not state.sized
    fits = fits and index.dtype == np.int64 and index.min() >= 0 and index.max() < table.shape[1]
    require(fits, f"biases {table.shape} by {index.shape} of {tokens} tokens")
    return attention_rule(state, attention)


def attention_rule(state: State, attention: Attention) -> State:
    heads, head_dim = attention.heads, attention.head_dim
    fits = whole(heads, 1, MAX_CHANNELS) and whole(head_dim, 1, MAX_HEAD_DIM) and isinstance(attention.first, bool)
    require(fits and state.width > 0, f"{heads} heads of {head_dim}, which is at most {MAX_HEAD_DIM}")
    require(state.channels == 3 * heads * head_dim, f"of {state.channels} channels")
    tokens, channels = 1 if attention.first else state.tokens, heads * head_dim
    return replace(state, tokens=tokens, channels=channels, giver=Attention, keys=(heads, head_dim), windowed=False)


def performer_rule(state: State, performer: Performer) -> State:
    features, width = performer.w.shape
    require(features > 0 and state.channels == 3 * width, f"of {state.channels} channels")
    return replace(state, width=width, channels=width, giver=Performer, keys=None)


def merge_rule(state: State, merge: Merge) -> State:
    require(whole(merge.prefix, 0, state.tokens), f"a prefix of {merge.prefix}")
    require(not state.windowed, "keys lie in windows")
    patches = state.tokens - merge.prefix
    most = (patches - 1) // 2
    said = f"{merge.count} of {patches} tokens are to be merged: at most {most} can be"
    require(whole(merge.count, 1, most), said)
    require((merge.heads, merge.head_dim) == state.keys, f"keys are {state.keys}")
    return replace(state, tokens=state.tokens - merge.count, keys=None, sized=True)


def grid_rule(state: State, grid: Grid) -> State:
    require(whole(grid.prefix, 0, state.tokens), f"a prefix of {grid.prefix}")
    side = isqrt(state.tokens - grid.prefix)
    require(side**2 == state.tokens - grid.prefix > 0, f"{state.tokens} tokens are no grid")
    require(not state.unread, "nothing has read the grid before it")
    return replace(state, grid=(side, state.width), unread=True)


def pyramid_rule(state: State, pyramid: Pyramid) -> State:
    sides = {convolved(conv, state.grid)[0] for conv in pyramid.convolutions}
    require(len(sides) == 1, f"of sides {sides}")
    require(not any(conv.factor.adds or conv.factor.silu for conv in pyramid.convolutions), "it adds, or has SiLU")
    width = sum(conv.factor.width for conv in pyramid.convolutions)
    return State(sides.pop() ** 2, width, grid=state.grid)


def branch_rule(state: State, branch: Branch) -> State:
    grid, (*others, last) = state.grid, branch.convolutions
    for conv in branch.convolutions:
        grid = convolved(conv, grid)
    require(whole(branch.prefix, 0, state.tokens), f"a prefix of {branch.prefix}")
    fits = grid == (last.across, state.width) and last.across**2 == state.tokens - branch.prefix
    fits = fits and last.factor.adds and not any(conv.factor.adds for conv in others)
    require(fits, f"adds {grid} to {state.tokens} tokens")
    # There may be no grid: kernels of a branch may read the stream itself.
    return replace(state, grid=None, unread=False)


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


RULES: dict[type, Callable[[State, Any], State]] = {
    Norm: norm_rule,
    RmsNorm: norm_rule,
    Renew: renew_rule,
    Factor: factor_rule,
    InnerNorm: inner_norm_rule,
    ReadStream: read_stream_rule,
    PostNorm: post_norm_rule,
    Glu: glu_rule,
    QkNorm: qk_norm_rule,
    Rotary: rotary_rule,
    Attention: attention_rule,
    BiasedAttention: biased_rule,
    WindowedAttention: windows_rule,
    Depthwise: depthwise_rule,
    ResponseNorm: response_norm_rule,
    Join: join_rule,
    NewStream: new_stream_rule,
    AddValues: add_values_rule,
    Performer: performer_rule,
    Merge: merge_rule,
    Grid: grid_rule,
    Pyramid: pyramid_rule,
    Branch: branch_rule,
}
"""The rule of each kind of operator: there are no others."""
