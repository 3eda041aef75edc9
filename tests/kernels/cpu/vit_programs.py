"""Programs of vision transformers with random weights."""

import numpy as np

from milkweed.kernels.cpu.factors import dense
from milkweed.kernels.cpu.program import Attention, Embed, Head, Merge, NormedEmbed, Operator, Program
from milkweed.kernels.cpu.row_operators import Norm, Renew, Unmerge

from .parts import Parts

SHAPES = {
    "tokens": {"size": 32, "patch": 16},
    "small patches": {"size": 20, "patch": 5},
    "wide patches": {"size": 72, "patch": 24},
    "odd": {"size": 48, "width": 80, "head_dim": 16, "hidden": 200, "classes": 7},
    "long": {"size": 112, "width": 64, "head_dim": 64},
    "two": {"nblocks": 2},
    "four": {"nblocks": 4, "everywhere": True},
    "three": {"nblocks": 3, "width": 96, "hidden": 72 * 3, "head_dim": 32},
    "padded": {"nblocks": 4, "width": 80, "hidden": 150, "head_dim": 16, "everywhere": True},
    "merged": {"size": 112, "width": 96, "head_dim": 32, "merged": 11},
    "merged odd": {"size": 96, "patch": 16, "width": 48, "head_dim": 16, "merged": 5, "hidden": 72},
    "eight": {"nblocks": 8, "width": 128, "head_dim": 32, "everywhere": True},
    "merged Monarch": {"size": 80, "nblocks": 2, "everywhere": True, "merged": 7},
    "merged, a mean": {"size": 80, "merged": 3, "mean": True},
    "pooled": {"size": 80, "nblocks": 2, "pooled": True},
    "normed patches": {"size": 42, "patch": 14, "normed": True},
    "runs of three": {"nblocks": 8, "width": 192, "head_dim": 64, "everywhere": True},
}


def made(
    size: int = 64,
    patch: int = 16,
    width: int = 64,
    head_dim: int = 32,
    hidden: int = 256,
    classes: int = 10,
    nblocks: int = 1,
    everywhere: bool = False,
    merged: int = 0,
    pooled: bool = False,
    normed: bool = False,
    mean: bool = False,
) -> Program:
    """A program of two blocks with random weights; with `everywhere` all linear layers are Monarch, else the MLPs.

    With `pooled` the last block computes the first token alone, and forgets what it was; with `mean` the head reads a
    mean of all patches."""
    parts, heads = Parts(nblocks), width // head_dim
    operators = list[Operator]()
    for block in range(2 if not merged else 4):
        last = pooled and block == 1
        operators += [parts.norm(width), *parts.layer(width, 3 * width, 0.5, plain=not everywhere)]
        operators.append(Attention(heads, head_dim, last))
        operators += [Renew(Norm(np.zeros(width), np.zeros(width), 1e-6))] * last
        operators += parts.layer(width, width, plain=not everywhere, adds=True)
        if merged and block in (0, 2):
            operators.append(Merge(heads, head_dim, 1, merged, 0.1 * block))
        operators += [parts.norm(width), *parts.layer(width, hidden, gelu=True), *parts.layer(hidden, width, adds=True)]
    operators += [Unmerge()] * (mean and merged > 0)
    tokens = (size // patch) ** 2 + 1
    weight, bias = parts.normal(width, 3, patch, patch) / patch, parts.bias(width)
    values = weight, bias, parts.rng.standard_normal((tokens, width)), size
    embed = NormedEmbed(*values, parts.norm(width)) if normed else Embed(*values)
    norm, first = parts.norm(width), 1 if mean else None
    head = Head(norm, dense(parts.normal(classes, width), parts.bias(classes), name="head"), first)
    return Program(embed, operators, head)
