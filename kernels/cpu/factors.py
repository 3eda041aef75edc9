"""Makes factors and convolutions of the weights that layers have."""

from typing import Any

import numpy as np

from .program import Convolution, Factor
from .row_operators import Floats, Places


def dense(weight: Floats, bias: Floats | None, **options: Any) -> Factor:
    """Make the factor of a dense layer: weight (out, in)."""
    return block_diagonal(weight[None], np.arange(weight.shape[1])[None], bias, **options)


def monarch(w1: Floats, w2: Floats, bias: Floats | None, outputs: int, **options: Any) -> list[Factor]:
    """Make the factors of a Monarch layer from w1 (K, q, p) and w2 (J, s, r), as `kernels/reference.py` defines it."""
    (K, q, p), (J, s, r) = w1.shape, w2.shape
    middle, name = np.arange(K * q), options.get("name", "")
    inputs = np.arange(K * p).reshape(K, p)
    first = Factor(w1, inputs, middle.reshape(K, q), K * q, np.zeros(K * q), name=f"{name}.w1")
    bias = np.zeros(outputs) if bias is None else bias
    return [first, Factor(w2, middle.reshape(r, J).T, np.arange(J * s).reshape(s, J).T, outputs, bias, **options)]


def block_diagonal(weight: Floats, inputs: Places, bias: Floats | None, **options: Any) -> Factor:
    """Make the factor of a block-diagonal layer: weight (N, s, p), and the channels (N, p) that each block reads."""
    outputs = np.arange(weight.shape[0] * weight.shape[1]).reshape(len(weight), -1)
    return Factor(weight, inputs, outputs, outputs.size, np.zeros(outputs.size) if bias is None else bias, **options)


def convolution(weight: Floats, bias: Floats | None, side: int, groups: int = 1, **options: Any) -> Convolution:
    """Make a convolution of weight (out, in / groups, kernel, kernel); a block of its factor holds several groups.

    Args:
        options: stride, dilation and padding; the rest is the factor's.
    """
    out, per, kernel, _ = weight.shape
    count, taps, outputs = _groups_in_block(groups, out // groups), kernel**2, out // groups
    blocks = groups // count
    full = np.zeros((blocks, count, outputs, taps, count, per), weight.dtype)
    for i in range(count):
        full[:, i, :, :, i] = weight.reshape(blocks, count, outputs, per, taps)[:, i].transpose(0, 1, 3, 2)
    channels = np.arange(per * groups).reshape(blocks, 1, count * per)
    inputs = (np.arange(taps)[:, None] * per * groups + channels).reshape(blocks, -1)
    geometry = {name: options.pop(name) for name in ("stride", "dilation", "padding") if name in options}
    bias = np.zeros(out) if bias is None else bias
    full = full.reshape(blocks, count * outputs, -1)
    factor = Factor(full, inputs, np.arange(out).reshape(blocks, -1), out, bias, **options)
    return Convolution(factor, side, per * groups, kernel, groups=groups, **geometry)


def _groups_in_block(groups: int, outputs: int) -> int:
    """How many groups a block holds, so that panels of 32 outputs multiply few zeros; of equal ones the most."""
    counts = [count for count in range(1, groups + 1) if groups % count == 0]
    return min(counts, key=lambda count: (-(-count * outputs // 32), -count))
