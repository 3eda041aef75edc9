"""Programs of the parts of a ViTAE with random weights: sizes, strides, dilations and channels that fit nothing."""

import itertools
from typing import Any

import numpy as np

from milkweed.kernels.cpu.factors import convolution, dense, monarch
from milkweed.kernels.cpu.program import (
    Attention,
    Branch,
    Convolution,
    Embed,
    Factor,
    Grid,
    Head,
    Operator,
    Performer,
    Pixels,
    Program,
    Pyramid,
)
from milkweed.kernels.cpu.row_operators import Norm

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
    parts = _Parts(nblocks)
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


def images_of(program: Program, count: int) -> np.ndarray:
    """Images of noise."""
    size = program.embed.size
    return np.random.default_rng(1).standard_normal((count, 3, size, size)).astype(np.float32)


class _Parts:
    """Operators with random weights."""

    def __init__(self, nblocks: int) -> None:
        self.rng, self.number, self.nblocks = np.random.default_rng(0), itertools.count(), nblocks

    def normal(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape) / np.sqrt(shape[-1])

    def bias(self, width: int) -> np.ndarray:
        return self.normal(1, width)[0]

    def norm(self, width: int) -> Norm:
        return Norm(1 + 0.3 * self.rng.standard_normal(width), self.bias(width), 1e-5)

    def layer(self, inputs: int, outputs: int, gain: float = 1.2, plain: bool = False, **options: Any) -> list[Factor]:
        options = {"name": f"layer {next(self.number)}", **options}
        bias, n = self.bias(outputs), self.nblocks
        if n == 1 or plain:
            return [dense(self.normal(outputs, inputs) * gain, bias, **options)]
        p, s = -(-inputs // n), -(-outputs // n)
        w1, w2 = self.normal(n, min(p, s), p) * gain, self.normal(n, s, min(p, s))
        return monarch(w1, w2, bias, outputs, **options)

    def rest(self, width: int, hidden: int, gain: float = 1.2) -> list[Operator]:
        """What follows an attention: its projection, and an MLP."""
        mlp = [*self.layer(width, hidden, gelu=True), *self.layer(hidden, width, adds=True)]
        return [*self.layer(width, width, gain, adds=True), self.norm(width), *mlp]

    def taps(
        self,
        side: int,
        channels: int,
        width: int,
        kernel: int,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
        **options: Any,
    ) -> Convolution:
        padding = -(-((kernel - 1) * dilation + 1 - stride) // 2)
        weight = self.normal(width, channels // groups, kernel, kernel)
        weight *= 1.3 / np.sqrt(channels // groups * kernel)
        options = {"name": f"layer {next(self.number)}", "stride": stride, "dilation": dilation, **options}
        return convolution(weight, self.bias(width), side, groups, padding=padding, **options)
