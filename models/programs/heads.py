"""Layers around an attention or a gate, with heads and gates of whole vectors: zeros fill them up."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from torch import Tensor

from ...kernels.cpu.factors import dense
from ...kernels.cpu.instruction_sets import LANES
from ...kernels.cpu.program import Attention, Factor, Operator, WindowedAttention
from ...kernels.cpu.row_operators import Norm, Places, Rotary
from ..serving.fused.chains import NotFusable
from .blocks import array


@dataclass(frozen=True)
class Angles:
    """Rotary embeddings of a block.

    Args:
        sin, cos: (1 or heads, patches, head_dim), as timm multiplies with them.
        half: whether a channel is rotated with the one half a head behind it; else with its neighbour.
        prefix: tokens in front of the patches, which are not rotated.
    """

    sin: Tensor
    cos: Tensor
    half: bool
    prefix: int


def only_dense(factors: Sequence[Factor]) -> Factor:
    """The one factor of a dense layer.

    Raises:
        NotFusable: it is structured.
    """
    if len(factors) > 1 or len(factors[0].weight) > 1:
        raise NotFusable("a layer that has to be joined with others, or filled up, is structured")
    return factors[0]


def taking(factors: Sequence[Factor], rows: Places) -> list[Factor]:
    factor = only_dense(factors)
    return [dense(factor.weight[0][rows], factor.bias[rows], name=factor.name)]


def stacked(layers: Sequence[list[Factor]]) -> list[Factor]:
    """One layer that gives the outputs of several, one behind the other."""
    if len(layers) == 1:
        return layers[0]
    factors = [only_dense(layer) for layer in layers]
    weight, bias = np.concatenate([f.weight[0] for f in factors]), np.concatenate([f.bias for f in factors])
    return [dense(weight, bias, name=factors[0].name)]


def reading(factors: list[Factor], places: Places, width: int) -> list[Factor]:
    """A dense layer whose inputs lie at those places among so many, the others zeros."""
    factor = only_dense(factors)
    weight = np.zeros((factor.width, width), np.float32)
    weight[:, places] = factor.weight[0]
    return [dense(weight, factor.bias, name=factor.name, adds=factor.adds, gelu=factor.gelu, silu=factor.silu)]


def _giving(factors: list[Factor], places: Places, width: int) -> list[Factor]:
    """A layer whose outputs are given at those places among so many, the others zeros."""
    if width == factors[-1].width:
        last = factors[-1]
        bias, outputs = np.zeros_like(last.bias), last.outputs.copy()
        bias[places], kept = last.bias, outputs < width
        outputs[kept] = places[outputs[kept]]
        return [*factors[:-1], replace(last, bias=bias, outputs=outputs)]
    factor = only_dense(factors)
    weight, bias = np.zeros((width, factor.weight.shape[2]), np.float32), np.zeros(width, np.float32)
    weight[places], bias[places] = factor.weight[0], factor.bias
    return [dense(weight, bias, name=factor.name, adds=factor.adds)]


def filled_up(mlp: list[Operator], channels: int) -> list[Operator]:
    """An MLP of a stream whose channels are filled up to whole vectors with zeros."""
    if (width := whole_vectors(channels)) == channels:
        return mlp
    first, last, places = cast(Factor, mlp[0]), cast(Factor, mlp[-1]), np.arange(channels)
    return [*reading([first], places, width), *mlp[1:-1], *_giving([last], places, width)]


def head_dims(attn: Any, width: int) -> tuple[int, int | None]:
    """The head dim of an attention with so many queries, keys and values, and that of queries and keys where it is
    another.

    Raises:
        NotFusable: they do not divide.
    """
    heads, narrow = int(attn.num_heads), getattr(attn, "qk_dim", None)
    head_dim, left = divmod(width - 2 * heads * narrow, heads) if narrow else divmod(width, 3 * heads)
    if left:
        raise NotFusable(f"attention of {heads} heads on a qkv of {width}")
    return head_dim, narrow


def whole_vectors(channels: int) -> int:
    """The channels of as many whole vectors as hold these."""
    return channels + -channels % LANES


def normed_into(norm: Norm, factors: list[Factor]) -> list[Operator]:
    """A norm and the layer that reads it, of channels that were filled up to whole vectors with their mean."""
    channels = len(norm.weight)
    if (width := whole_vectors(channels)) == channels:
        return [norm, *factors]
    places = np.arange(channels)
    return [by_places(norm, 1, places, width), *reading(factors, places, width)]


def places_of(head_dim: int, angles: Angles | None) -> tuple[Places, int]:
    """Where a head's channels of queries and keys go, and its width: whole vectors, or with angles whole halves."""
    channels = np.arange(head_dim)
    if angles is None:
        return channels, whole_vectors(head_dim)
    width = head_dim + -head_dim % (2 * LANES)
    part, pair = np.divmod(channels, head_dim // 2) if angles.half else (channels % 2, channels // 2)
    return part * (width // 2) + pair, width


def _by_places(factors: list[Factor], attention: Attention, places: Places, width: int, scale: float) -> list[Factor]:
    """Queries, keys and values with heads of a width, queries multiplied by a scale; places are of the former two."""
    heads = attention.heads
    starts = np.arange(3 * heads)[:, None] * width
    values = starts[2 * heads :] + np.arange(attention.head_dim)
    spread = np.concatenate([(starts[: 2 * heads] + places).reshape(-1), values.reshape(-1)])
    *before, last = factors
    rows = np.ones(last.width, np.float32)
    rows[: heads * len(places)] = scale
    by_output = rows[np.minimum(last.outputs, len(rows) - 1)]
    last = replace(last, weight=last.weight * by_output[..., None], bias=last.bias * rows)
    return _giving([*before, last], spread, 3 * heads * width)


def by_places(norm: Norm, heads: int, places: Places, width: int) -> Norm:
    """A norm of each head, (channels,) or (heads * channels,), as one of heads whose channels go to places of so many.

    The others hold the channels' mean, zeros for an RMSNorm: so the mean stays what it was, and the variance, or the
    mean of squares, is that of the channels times their share.
    """
    share = len(places) / width
    weight, bias = np.zeros((2, heads, width), np.float32)
    weight[:, places] = norm.weight.reshape(-1, len(places)) * share**0.5
    bias[:, places] = norm.bias.reshape(-1, len(places))
    return replace(norm, weight=weight.reshape(-1), bias=bias.reshape(-1), eps=norm.eps * share)


def with_means(qkv: list[Factor], heads: int, places: Places, width: int) -> list[Factor]:
    """A dense layer whose queries and keys have the mean of each head's channels where they were filled up."""
    factor, idle = only_dense(qkv), np.setdiff1d(np.arange(width), places)
    weight, bias = factor.weight[0].copy(), factor.bias.copy()
    for values in (weight, bias):
        channels = values.reshape(3, heads, width, -1)[:2]
        channels[:, :, idle] = channels[:, :, places].mean(2, keepdims=True)
    return [dense(weight, bias, name=factor.name)]


def rotary_of(angles: Angles, heads: int, places: Places) -> Rotary:
    """The rotation by angles, of which both channels of a pair have the same."""
    half = (len(places) + -len(places) % (2 * LANES)) // 2
    front = places < half  # the first channel of each pair
    tables = []
    for values, idle in ((angles.cos, 1.0), (angles.sin, 0.0)):
        by_token = array(values).transpose(1, 0, 2)
        table = np.full((angles.prefix + len(by_token), by_token.shape[1], half), idle, np.float32)
        table[angles.prefix :, :, places[front]] = by_token[..., front]
        if not np.array_equal(by_token[..., front], by_token[..., ~front]):
            raise NotFusable("its rotary embedding has two angles for a pair of channels")
        tables.append(table)
    return Rotary(heads, *tables)


def whole_gates(before: list[Factor], behind: list[Factor], *, last: bool) -> tuple[list[Factor], list[Factor]]:
    """The layers around a gate of whole vectors, the gate's channels first."""
    channels = before[-1].width // 2
    width = whole_vectors(channels)
    halves = np.arange(2 * channels).reshape(2, channels)
    places = (halves % channels + np.array([[width], [0]] if last else [[0], [width]])).reshape(-1)
    if width != channels:
        behind = reading(behind, np.arange(channels), width)
    return _giving(before, places, 2 * width), behind


def around(
    qkv: list[Factor],
    attention: Attention,
    proj: list[Factor],
    scale: float,
    angles: Angles | None = None,
    qk_dim: int | None = None,
) -> tuple[list[Factor], Attention, list[Factor]]:
    """Return an attention and the layers around it, with heads of whole vectors, and queries multiplied by a scale.

    Args:
        qk_dim: of each head's queries and keys, where it is less than that of values.
    """
    heads, head_dim = attention.heads, attention.head_dim
    places, width = places_of(head_dim, angles)
    if width != head_dim:
        kept = np.arange(heads * width).reshape(heads, width)[:, :head_dim].reshape(-1)
        proj = reading(proj, kept, heads * width)
    return _by_places(qkv, attention, places[:qk_dim], width, scale), replace(attention, head_dim=width), proj


def in_windows(attention: Attention, side: int, window: int, shift: tuple[int, int] = (0, 0)) -> WindowedAttention:
    """Return an attention within square windows of a grid of this side, which is rolled up and left before.

    Raises:
        NotFusable: windows do not divide the grid.
    """
    if side % window:
        raise NotFusable(f"windows of {window} by {window} do not divide a grid of {side} tokens on a side")
    grid = np.roll(np.arange(side**2).reshape(side, side), (-shift[0], -shift[1]), (0, 1))
    across = side // window
    windows = grid.reshape(across, window, across, window).swapaxes(1, 2).reshape(across**2, window**2)
    return WindowedAttention(
        attention.heads,
        attention.head_dim,
        table=np.zeros((attention.heads, 1), np.float32),
        index=np.zeros((1, window**2, window**2), np.int64),
        windows=windows,
        kinds=np.zeros(across**2, np.int64),
    )
