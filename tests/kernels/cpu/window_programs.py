"""Programs of windows, depthwise convolutions and stages with fewer, wider tokens, with random weights."""

import itertools
from typing import Any

import numpy as np

from milkweed.kernels.cpu.factors import dense
from milkweed.kernels.cpu.program import (
    Attention,
    Depthwise,
    Embed,
    Factor,
    Head,
    Operator,
    Program,
    WindowedAttention,
)
from milkweed.kernels.cpu.row_operators import AddValues, InnerNorm, Join, NewStream, Norm, Renew

SHAPES: dict[str, dict[str, Any]] = {
    "windows": {},
    "windows, many kinds": {"size": 32, "window": 4, "kinds": 3, "head_dim": 16},
    "windows without biases": {"kinds": 0, "window": 2},
    "windows, odd": {"size": 36, "window": 3, "width": 48, "head_dim": 16, "hidden": 72},
    "depthwise": {"kernel": 7},
    "depthwise, wide": {"kernel": 9, "size": 36, "width": 48, "hidden": 72},
    "depthwise, narrow": {"kernel": 3, "size": 20},
    "values": {"values": True},
}


def made(
    size: int = 32,
    patch: int = 4,
    width: int = 32,
    head_dim: int = 16,
    hidden: int = 64,
    window: int = 4,
    kinds: int = 1,
    kernel: int = 0,
    values: bool = False,
) -> Program:
    """A program of two blocks, between which tokens are joined where their grid divides, and else start anew.

    Args:
        kinds: of biases; 0 for none.
        kernel: side of depthwise convolutions in place of attention; 0 for attention.
        values: attention over all tokens, whose answers start the stream anew, with the values added.
    """
    rng, number = np.random.default_rng(0), itertools.count()

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape) / np.sqrt(shape[-1])

    def layer(inputs: int, outputs: int, gain: float = 1.2, **options: Any) -> Factor:
        return dense(normal(outputs, inputs) * gain, normal(1, outputs)[0], name=f"layer {next(number)}", **options)

    def norm(channels: int) -> Norm:
        return Norm(1 + 0.3 * rng.standard_normal(channels), normal(1, channels)[0], 1e-6)

    def windows(side: int, heads: int) -> WindowedAttention:
        places = rng.permutation(side**2).reshape(-1, window**2)
        index = rng.integers(0, 9, (max(kinds, 1), window**2, window**2))
        table = 2 * rng.standard_normal((heads, 9)) * (kinds > 0)
        of = rng.integers(0, max(kinds, 1), len(places))
        return WindowedAttention(heads, head_dim, table=table, index=index, windows=places, kinds=of)

    def mixing(side: int, channels: int) -> list[Operator]:
        if kernel:
            weight = rng.standard_normal((channels, kernel, kernel)) / kernel
            return [Depthwise(weight, normal(1, channels)[0]), InnerNorm(norm(channels))]
        heads = channels // head_dim
        attention = Attention(heads, head_dim) if values or side % window else windows(side, heads)
        anew = [NewStream(), *[AddValues()] * values] if values else []
        attended = [attention, layer(channels, channels, adds=not values), *anew]
        return [norm(channels), layer(channels, 3 * channels, 0.5), *attended, norm(channels)]

    side, operators = size // patch, list[Operator]()
    embed = Embed(
        normal(width, 3, patch, patch) / patch, normal(1, width)[0], rng.standard_normal((side**2, width)), size
    )
    for stage in range(2):
        operators += mixing(side, width)
        operators += [layer(width, hidden, gelu=True), layer(hidden, width, adds=True)]
        if stage == 0 and side % 2 == 0:
            rows = rng.permutation(side**2).reshape(-1, 4)
            between = [InnerNorm(norm(4 * width))] * (not kernel)
            operators += [Renew(norm(width)), Join(rows), *between, layer(4 * width, 2 * width), NewStream()]
            side, width, hidden = side // 2, 2 * width, 2 * hidden
        elif stage == 0:
            operators += [norm(width), layer(width, width), NewStream()]
    head = Head(norm(width), dense(normal(10, width), normal(1, 10)[0], name="head"), mean_from=0)
    return Program(embed, operators, head)
