"""Operators with random weights, and images of noise."""

import itertools
from typing import Any

import numpy as np

from milkweed.kernels.cpu.factors import convolution, dense, monarch
from milkweed.kernels.cpu.program import Convolution, Factor, Operator, Program
from milkweed.kernels.cpu.row_operators import Norm


class Parts:
    """Operators with random weights."""

    def __init__(self, nblocks: int = 1) -> None:
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


def images_of(program: Program, count: int) -> np.ndarray:
    """Images of noise."""
    size = program.embed.size
    return np.random.default_rng(1).standard_normal((count, 3, size, size)).astype(np.float32)
