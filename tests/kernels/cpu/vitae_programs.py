"""Programs of the parts of a ViTAE with random weights: sizes, strides, dilations and channels that fit nothing."""

from typing import Any

from milkweed.kernels.cpu.program import (
    Attention,
    Branch,
    Embed,
    Grid,
    Head,
    Operator,
    Performer,
    Pixels,
    Program,
    Pyramid,
)

from .parts import Parts

SHAPES: dict[str, dict[str, Any]] = {
    "groups": {},
    "odd": {"size": 37, "width": 80, "hidden": 160, "groups": 20, "embed": 16, "classes": 7},
    "dilations beyond the grid": {"size": 9, "stride": 1, "kernel": 7, "dilations": (1, 5)},
    "few places": {"size": 8, "groups": 32, "hidden": 32},
    "dense branch": {"groups": 1, "hidden": 40},
    "few groups": {"groups": 4, "hidden": 24, "size": 22},
    "Monarch": {"nblocks": 4, "groups": 16},
    "class token": {"prefix": 1, "patch": 4, "silu": False, "groups": 16},
    "class token, dense branch": {"prefix": 1, "patch": 5, "size": 25, "groups": 2, "nblocks": 2},
}


def made(
    size: int = 20,
    width: int = 64,
    embed: int = 32,
    hidden: int = 128,
    kernel: int = 3,
    stride: int = 2,
    dilations: tuple[int, ...] = (1, 2),
    groups: int = 16,
    nblocks: int = 1,
    classes: int = 10,
    prefix: int = 0,
    patch: int = 0,
    silu: bool = True,
) -> Program:
    """A reduction cell and a pyramid, or patches and a class token where `patch` is given; then two normal cells."""
    parts = Parts(nblocks)
    if patch:
        side = size // patch
        start = parts.normal(side**2 + prefix, width) * 8
        embedding: Embed | Pixels = Embed(parts.normal(width, 3, patch, patch) / patch, parts.bias(width), start, size)
        operators: list[Operator] = []
    else:
        embedding = Pixels(size)
        pyramid = [parts.taps(size, 3, embed, kernel, stride, each, gelu=True) for each in dilations]
        side, dim = pyramid[0].across, 16 * len(dilations)
        branch = [parts.taps(size, 3, 24, 3, stride, silu=True), parts.taps(side, 24, 40, 3, silu=True)]
        branch.append(parts.taps(side, 40, dim, 3, silu=True, adds=True))
        operators = [Pyramid(pyramid), parts.norm(embed * len(dilations))]
        operators += parts.layer(embed * len(dilations), 3 * dim, 0.5)
        operators += [Performer(parts.normal(dim // 2, dim) * 2, 1e-8), Branch(branch), *parts.rest(dim, dim, 3.0)]
        pyramid = [parts.taps(side, dim, width // 2, 3, 2, each, gelu=True) for each in (1, 2)]
        operators += [Grid(), Pyramid(pyramid)]
        side = pyramid[0].across
    for _ in range(2):
        branch = [parts.taps(side, width, hidden, 3, groups=groups, silu=True)]
        branch.append(parts.taps(side, hidden, width, 3, groups=groups, silu=silu, adds=not silu))
        branch += [parts.taps(side, width, width, 3, groups=groups, silu=True, adds=True)] if silu else []
        operators += [Grid(prefix), parts.norm(width), *parts.layer(width, 3 * width, 0.5), Attention(width // 16, 16)]
        operators += [Branch(branch, prefix), *parts.rest(width, 2 * width)]
    head = Head(parts.norm(width) if prefix else None, parts.layer(width, classes, plain=True, name="head")[0], prefix)
    return Program(embedding, operators, head)
