"""Programs of blocks with positions in attention, gates and inner norms, with random weights."""

from dataclasses import replace
from typing import Any

import numpy as np

from milkweed.kernels.cpu.program import Attention, BiasedAttention, Embed, Factor, Head, Operator, Program
from milkweed.kernels.cpu.row_operators import (
    Glu,
    InnerNorm,
    Keep,
    Norm,
    PostNorm,
    QkNorm,
    ReadStream,
    Renew,
    RmsNorm,
    Rotary,
)

from .parts import Parts

SHAPES: dict[str, dict[str, Any]] = {
    "biases": {"biased": True},
    "biases, odd": {"biased": True, "size": 48, "width": 80, "head_dim": 16, "hidden": 200},
    "biases, long": {"biased": True, "size": 112, "patch": 4, "head_dim": 64},
    "rotations": {"rotary": 1},
    "rotations by head, norms": {"rotary": 2, "norms": True},
    "norms": {"norms": True, "rms": True},
    "gates": {"gated": True, "hidden": 96},
    "inner norms": {"inner": True, "hidden": 96, "padding": 6},
    "inner norms, SiLU": {"inner": True, "hidden": 96, "silu": True},
    "norms behind": {"post": True},
    "MLPs beside attention": {"beside": True},
    "MLPs beside attention, rotations": {"beside": True, "rotary": 2, "norms": True, "biased": True, "gated": True},
    "everything": {
        "biased": True,
        "rotary": 1,
        "norms": True,
        "gated": True,
        "inner": True,
        "rms": True,
        "size": 40,
        "patch": 8,
        "width": 96,
        "hidden": 80,
        "padding": 15,
    },
}


def made(
    size: int = 64,
    patch: int = 16,
    width: int = 64,
    head_dim: int = 32,
    hidden: int = 256,
    biased: bool = False,
    rotary: int = 0,
    norms: bool = False,
    gated: bool = False,
    inner: bool = False,
    rms: bool = False,
    padding: int = 0,
    silu: bool = False,
    post: bool = False,
    beside: bool = False,
) -> Program:
    """A program of two blocks.

    Args:
        rotary: 1 for rotations, 2 for others in each head.
        beside: MLPs read the same stream as the attention.
        post: norms of what is added, in place of those of the stream.
        padding: the last channels between the layers of an MLP that its inner norm leaves out.
    """
    parts = Parts()
    heads, tokens = width // head_dim, (size // patch) ** 2 + 1

    def norm(channels: int = width) -> Norm:
        weight = 1 + 0.3 * parts.rng.standard_normal(channels)
        return RmsNorm(weight, 0 * weight, 1e-6) if rms else Norm(weight, parts.bias(channels), 1e-6)

    def positions() -> list[Operator]:
        operators = list[Operator]()
        if norms:
            queries = norm(width)
            queries = replace(queries, weight=0.3 * queries.weight, bias=0.3 * queries.bias)
            operators.append(QkNorm(heads, queries, norm(width)))
        if rotary:
            angles = parts.rng.uniform(0, 2 * np.pi, (tokens, heads if rotary > 1 else 1, head_dim // 2))
            operators.append(Rotary(heads, np.cos(angles), np.sin(angles)))
        if not biased:
            return [*operators, Attention(heads, head_dim)]
        table, index = 2 * parts.rng.standard_normal((heads, 50)), parts.rng.integers(0, 50, (tokens, tokens))
        return [*operators, BiasedAttention(heads, head_dim, table=table, index=index)]

    def mlp() -> list[Operator]:
        (fc1,) = parts.layer(width, 2 * hidden if gated else hidden, gelu=not gated and not silu, silu=silu)
        if padding:  # zeros before and behind the activation
            fc1.weight[0].reshape(-1, hidden, width)[:, -padding:] = 0
            fc1.bias.reshape(-1, hidden)[:, -padding:] = 0
        between: list[Operator] = [Glu()] * gated
        between += [InnerNorm(norm(hidden - padding))] * inner
        return [fc1, *between, *added(*parts.layer(hidden, width, adds=not post))]

    def added(layer: Factor) -> list[Operator]:
        return [layer, PostNorm(norm())] if post else [layer]

    operators = list[Operator]()
    for _ in range(2):
        *before, attention = positions()
        behind = [ReadStream() if post else norm(), *mlp()]
        operators += [ReadStream() if post else norm(), *parts.layer(width, 3 * width, 0.5), *before]
        operators += [Keep(), *behind, attention] if beside else [attention]
        operators += [InnerNorm(norm())] * inner
        operators += [*added(*parts.layer(width, width, adds=not post)), *([] if beside else behind)]
    weight, start = parts.normal(width, 3, patch, patch) / patch, parts.rng.standard_normal((tokens, width))
    embed = Embed(weight, parts.bias(width), start, size)
    operators.append(Renew(norm()))
    return Program(embed, operators, Head(norm(), parts.layer(width, 10, 1.0, name="head")[0]))
