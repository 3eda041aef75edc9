"""Programs of MLPs over tokens, and of streams that start anew with tokens in front, with random weights."""

from typing import Any

from milkweed.kernels.cpu.program import Attention, Branch, Embed, Grid, Head, Operator, Program
from milkweed.kernels.cpu.row_operators import AddTransposed, Glu, Renew, StartTokens, Transpose

from .parts import Parts

SHAPES: dict[str, dict[str, Any]] = {
    "mixing": {},
    "mixing, odd": {"size": 36, "width": 48, "over_tokens": 40, "hidden": 80},
    "mixing, whole vectors": {"size": 32, "over_tokens": 64},
    "mixing, gated": {"gated": True, "over_tokens": 32},
    "mixing, Monarch": {"nblocks": 4, "size": 32},
    "a start": {"prefix": 1},
    "a start, odd": {"prefix": 3, "size": 28, "width": 48, "hidden": 80},
}


def made(
    size: int = 20,
    patch: int = 4,
    width: int = 32,
    over_tokens: int = 48,
    hidden: int = 64,
    gated: bool = False,
    prefix: int = 0,
    nblocks: int = 1,
) -> Program:
    """A program of two blocks.

    Args:
        over_tokens: hidden units of MLPs over tokens; `gated` halves them.
        prefix: tokens in front of a stream of twice the width that starts anew, in place of a first block; then the
            second has attention.
    """
    parts, side, operators = Parts(nblocks), size // patch, list[Operator]()
    weight, start = parts.normal(width, 3, patch, patch) / patch, parts.rng.standard_normal((side**2, width))
    embed = Embed(weight, parts.bias(width), start, size)
    if prefix:
        joined = parts.taps(side, width, 2 * width, 3, stride=2, adds=True)
        width, tokens = 2 * width, joined.across**2 + prefix
        operators += [Renew(parts.norm(width // 2)), Grid()]
        operators += [StartTokens(parts.rng.standard_normal((tokens, width))), Branch([joined], prefix)]
        operators += [parts.norm(width), *parts.layer(width, 3 * width, 0.5), Attention(width // 16, 16)]
        operators += parts.rest(width, hidden)
    for _ in range(0 if prefix else 2):
        fc1 = parts.layer(side**2, over_tokens, gelu=not gated)
        over = [*fc1, *[Glu()] * gated, *parts.layer(over_tokens // (1 + gated), side**2)]
        mlp = [*parts.layer(width, hidden, gelu=True), *parts.layer(hidden, width, adds=True)]
        operators += [parts.norm(width), Transpose(), *over, AddTransposed(), parts.norm(width), *mlp]
    head = Head(parts.norm(width), parts.layer(width, 10, 1.0, plain=True, name="head")[0], None if prefix else 0)
    return Program(embed, operators, head)
