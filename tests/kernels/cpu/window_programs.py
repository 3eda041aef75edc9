"""Programs of windows, depthwise convolutions and stages with fewer, wider tokens, with random weights."""

from typing import Any

from milkweed.kernels.cpu.program import (
    Attention,
    Depthwise,
    Embed,
    Head,
    Merge,
    Operator,
    Program,
    ResponseNorm,
    WindowedAttention,
)
from milkweed.kernels.cpu.row_operators import AddValues, InnerNorm, Join, NewStream, Renew

from .parts import Parts

SHAPES: dict[str, dict[str, Any]] = {
    "windows": {},
    "windows, many kinds": {"size": 32, "window": 4, "kinds": 3, "head_dim": 16},
    "windows without biases": {"kinds": 0, "window": 2},
    "windows, odd": {"size": 36, "window": 3, "width": 48, "head_dim": 16, "hidden": 72},
    "depthwise": {"kernel": 7},
    "depthwise, wide": {"kernel": 9, "size": 36, "width": 48, "hidden": 72},
    "depthwise, narrow": {"kernel": 3, "size": 20},
    "response norms": {"kernel": 3, "response": True},
    "response norms, odd": {"size": 36, "window": 3, "width": 48, "hidden": 80, "response": True},
    "values": {"values": 2},
    "values, then windows": {"values": 1, "size": 84, "window": 3},
    "merged, then a new stream": {"merged": 5, "size": 16},
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
    values: int = 0,
    merged: int = 0,
    response: bool = False,
) -> Program:
    """A program of two blocks, between which tokens are joined where their grid divides, and else start anew.

    Args:
        kinds: of biases; 0 for none.
        kernel: side of depthwise convolutions in place of attention; 0 for attention.
        values: so many blocks have attention over all tokens, whose answers start the stream anew, values added.
        merged: tokens that the first block merges; attention is over all tokens.
        response: whether MLPs have a global response norm.
    """
    parts = Parts()

    def windows(side: int, heads: int) -> WindowedAttention:
        places = parts.rng.permutation(side**2).reshape(-1, window**2)
        index = parts.rng.integers(0, 9, (max(kinds, 1), window**2, window**2))
        table = 2 * parts.rng.standard_normal((heads, 9)) * (kinds > 0)
        of = parts.rng.integers(0, max(kinds, 1), len(places))
        return WindowedAttention(heads, head_dim, table=table, index=index, windows=places, kinds=of)

    def mixing(stage: int, side: int, channels: int) -> list[Operator]:
        if kernel:
            weight = parts.rng.standard_normal((channels, kernel, kernel)) / kernel
            return [Depthwise(weight, parts.bias(channels)), InnerNorm(parts.norm(channels))]
        heads, anew = channels // head_dim, stage < values
        whole = anew or merged or side % window
        attention = Attention(heads, head_dim) if whole else windows(side, heads)
        attended = [attention, *parts.layer(channels, channels, adds=not anew)]
        attended += [NewStream(), AddValues()] if anew else []
        attended += [Merge(heads, head_dim, 0, merged)] if merged and stage == 0 else []
        return [parts.norm(channels), *parts.layer(channels, 3 * channels, 0.5), *attended, parts.norm(channels)]

    side, operators = size // patch, list[Operator]()
    weight, start = parts.normal(width, 3, patch, patch) / patch, parts.rng.standard_normal((side**2, width))
    embed = Embed(weight, parts.bias(width), start, size)
    for stage in range(2):
        operators += mixing(stage, side, width)
        norms = [ResponseNorm(parts.rng.standard_normal(hidden), parts.bias(hidden), 1e-6)] * response
        operators += [*parts.layer(width, hidden, gelu=True), *norms, *parts.layer(hidden, width, adds=True)]
        if stage == 0 and side % 2 == 0 and not merged:
            rows = parts.rng.permutation(side**2).reshape(-1, 4)
            between = [InnerNorm(parts.norm(4 * width))] * (not kernel)
            operators += [Renew(parts.norm(width)), Join(rows), *between, *parts.layer(4 * width, 2 * width)]
            operators.append(NewStream())
            side, width, hidden = side // 2, 2 * width, 2 * hidden
        elif stage == 0:
            operators += [parts.norm(width), *parts.layer(width, width), NewStream()]
    head = Head(parts.norm(width), parts.layer(width, 10, 1.0, name="head")[0], mean_from=0)
    return Program(embed, operators, head)
