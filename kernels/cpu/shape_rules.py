"""What each operator of a program needs of the state before it, and the state that it leaves behind."""

from collections.abc import Callable
from dataclasses import replace
from math import isqrt
from typing import Any

import numpy as np

from .program import (
    Attention,
    BiasedAttention,
    Branch,
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
    AddTransposed,
    AddValues,
    Glu,
    InnerNorm,
    Join,
    Keep,
    NewStream,
    Norm,
    PostNorm,
    QkNorm,
    ReadStream,
    Renew,
    RmsNorm,
    Rotary,
    StartTokens,
    Transpose,
    Unmerge,
)
from .shape_checks import (
    MAX_CHANNELS,
    MAX_HEAD_DIM,
    MAX_KERNEL,
    State,
    check_factor,
    convolved,
    require,
    whole,
)


def norm_rule(state: State, norm: Norm) -> State:
    require(norm.weight.shape == norm.bias.shape == (state.width,) != (0,), f"not {state.width} channels")
    return replace(state, channels=state.width, giver=Norm)


def renew_rule(state: State, renew: Renew) -> State:
    _partly(renew.norm, 1, state.width)
    return state


def factor_rule(state: State, factor: Factor) -> State:
    require(not (factor.silu and factor.adds), "SiLU of what adds, outside of a branch")
    require(not (factor.adds and state.transposed), "adds rows of channels to tokens")
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
    _partly(inner.norm, 1 if state.giver in (Factor, Glu, Depthwise) else state.channels, state.channels)
    return replace(state, giver=InnerNorm)


def _partly(norm: Norm, least: int, channels: int) -> None:
    """Check a norm of the first of channels, of so many at least."""
    shape = norm.weight.shape
    right = len(shape) == 1 and shape == norm.bias.shape and whole(shape[0], least, channels)
    require(right, f"of {shape} of {channels} channels")


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
    return replace(state, width=state.channels, channels=0, giver=None, merged=0)


def start_tokens_rule(state: State, begin: StartTokens) -> State:
    shape = begin.start.shape
    fits = len(shape) == 2 and shape[0] > 0 and 0 < shape[1] <= MAX_CHANNELS
    require(fits, f"values {shape}")
    return State(shape[0], shape[1], grid=state.grid, unread=state.unread)


def transpose_rule(state: State, _: Transpose) -> State:
    return replace(state, channels=state.tokens, giver=Transpose, transposed=True)


def add_transposed_rule(state: State, _: AddTransposed) -> State:
    fits = state.transposed and state.channels == state.tokens
    require(fits, f"{state.channels} channels for {state.tokens} tokens")
    return replace(state, channels=0, giver=None, transposed=False)


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
    read = state.kept or state.channels
    require(read == 3 * heads * head_dim, f"of {read} channels")
    tokens, channels = 1 if attention.first else state.tokens, heads * head_dim
    after = replace(state, tokens=tokens, channels=channels, giver=Attention, keys=(heads, head_dim))
    return replace(after, windowed=False, kept=0, merged=0 if attention.first else state.merged)


def keep_rule(state: State, _: Keep) -> State:
    return replace(state, channels=0, giver=None, kept=state.channels)


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
    return replace(state, tokens=state.tokens - merge.count, keys=None, merged=state.merged + merge.count)


def unmerge_rule(state: State, _: Unmerge) -> State:
    require(state.sized, "no tokens are merged")
    return replace(state, tokens=state.tokens + state.merged, keys=None, merged=0)


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
    Keep: keep_rule,
    Depthwise: depthwise_rule,
    ResponseNorm: response_norm_rule,
    Join: join_rule,
    NewStream: new_stream_rule,
    AddValues: add_values_rule,
    StartTokens: start_tokens_rule,
    Transpose: transpose_rule,
    AddTransposed: add_transposed_rule,
    Performer: performer_rule,
    Merge: merge_rule,
    Unmerge: unmerge_rule,
    Grid: grid_rule,
    Pyramid: pyramid_rule,
    Branch: branch_rule,
}
"""The rule of each kind of operator: there are no others."""
