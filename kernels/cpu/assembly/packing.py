"""Packs the weights of a factor into the panels that an instruction set multiplies by."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..instruction_sets import LANES, InstructionSet
from ..program import Convolution, Factor, Quantiser
from ..row_operators import Floats, Places
from .layout import groups_of, rows_by_position

STEP_BYTES = 4
MOST_OF_FOUR = 128
"""The most that four weights of one sign may add up to where their products do in 16 bits: 255 x 128 is below 2^15."""


@dataclass(frozen=True, eq=False)
class PackedFactor:
    """A factor as `csrc/program.h` takes it: outputs of all blocks one behind the other, each block's filled up.

    Args:
        panels: int8 or the bits of bfloat16: (blocks, panels, k-steps, 16 nr, numbers of a k-step).
        scale, bias: (blocks x outputs,), float32: of the sums.
        scale2, bias2: behind GELU or SiLU, from its values to 8 bits; None where they stay floats.
        places: (groups,), int32: column of each group of outputs.
        overflow: what was taken out of the panels; None where sums have 32 bits.
    """

    nr: int
    outputs: int
    panels: NDArray[np.int8] | NDArray[np.uint16]
    scale: NDArray[np.float32]
    bias: NDArray[np.float32]
    scale2: NDArray[np.float32] | None
    bias2: NDArray[np.float32] | None
    group: int
    places: NDArray[np.int32]
    overflow: "Overflow | None"


@dataclass(frozen=True, eq=False)
class Overflow:
    """What does not fit sums of 16 bits, as k-steps of their own: of a sum of four products, a part of the first two.

    Args:
        table: int32: where the k-steps of each panel begin, and the last end; then the number of each k-step.
        weights: int8: (k-steps, 16 nr, numbers of a k-step).
    """

    table: NDArray[np.int32]
    weights: NDArray[np.int8]


def pack(
    factor: Factor, order: Places, place: Places, free: Places, dropped: int, out: Quantiser | None, isa: InstructionSet
) -> PackedFactor:
    """Pack a factor.

    Args:
        order: channel at each position of its inputs.
        place: position of each channel of its outputs.
        free: positions where more may be written: anything in a vector, and zeros where they are added.
        dropped: column where outputs that are not kept may be written.
        out: how its outputs become 8 bits; None where they stay floats.
    """
    blocks, outputs, _ = factor.weight.shape
    nr, padded = isa.panel_for(outputs), isa.room_for(outputs)
    rows, at = np.full((2, blocks, padded), -1)
    for block in range(blocks):
        of_block, to = rows_by_position(factor.outputs[block], place, free, padded)
        rows[block, : len(of_block)], at[block, : len(of_block)] = of_block, to
    weight, scale, bias = ordered(factor, order, isa)
    weight, scale, bias = (_rows(values, rows) for values in (weight, scale, bias))
    to_8_bits = _rows_of(out, factor, rows)
    if to_8_bits is not None and not (factor.gelu or factor.silu):
        by, bias = to_8_bits[0], bias * to_8_bits[0] + to_8_bits[1]
        # Sums of products of bfloat16 are multiplied by nothing.
        weight, scale = (weight * by[..., None], scale) if factor.scale is None else (weight, scale * by)
    group, places = groups_of(at.reshape(-1))
    panels = _panels(weight, nr, isa)
    return PackedFactor(
        nr=nr,
        outputs=padded,
        panels=panels,
        scale=_flat(scale),
        bias=_flat(bias),
        scale2=None if to_8_bits is None else _flat(to_8_bits[0]),
        bias2=None if to_8_bits is None else _flat(to_8_bits[1]),
        group=group,
        places=np.where(places < 0, dropped, places).astype(np.int32),
        overflow=_take_overflow(panels) if factor.scale is not None and isa.rounding.rms < np.inf else None,
    )


def _flat(values: Floats) -> NDArray[np.float32]:
    return values.astype(np.float32).reshape(-1)


def ordered(factor: Factor, order: Places, isa: InstructionSet) -> tuple[NDArray[Any], Floats, Floats]:
    """Return the weight with its columns in the order of the inputs, scale and bias (blocks, out) of its sums.

    Int8 weights that are larger than the set's levels are rounded once more.
    """
    blocks, outputs, _ = factor.weight.shape
    inputs = len(order) // blocks
    column = np.full(max(factor.inputs.max(), order.max()) + 1, 0)
    weight = np.zeros((blocks, outputs, inputs), factor.weight.dtype)
    bias = np.where(factor.outputs < factor.width, factor.bias[np.minimum(factor.outputs, factor.width - 1)], 0.0)
    scale, values = np.ones((blocks, outputs)), factor.weight
    if factor.scale is not None:
        largest = np.maximum(values.max(-1).astype(np.int16), -values.min(-1).astype(np.int16))
        most = np.maximum(largest / isa.rounding.levels, 1)
        scale = factor.scale.astype(np.float64) * most
        if largest.max() > isa.rounding.levels:
            values = np.rint(values / most[..., None]).astype(np.int8)
    for block in range(blocks):
        channels = order[block * inputs : (block + 1) * inputs]
        column[factor.inputs[block]] = np.arange(factor.inputs.shape[1])
        weight[block] = np.where(channels >= 0, values[block].take(column[channels], 1), 0)
        if factor.quantiser is not None:
            zero = np.where(channels >= 0, factor.quantiser.zero[channels], 0.0)
            bias[block] -= scale[block] * (weight[block].astype(np.float64) @ zero)
    # What is computed of outputs that are not kept may be added anywhere.
    weight[factor.outputs >= factor.width] = 0
    bias[factor.outputs >= factor.width] = 0
    return weight, scale, bias


def _rows(values: NDArray[Any], rows: Places) -> NDArray[Any]:
    """Rows of each block in another order, zeros at -1."""
    reordered = np.stack([block[np.maximum(row, 0)] for block, row in zip(values, rows, strict=True)])
    reordered[rows < 0] = 0
    return reordered


def _rows_of(out: Quantiser | None, factor: Factor, rows: Places) -> tuple[Floats, Floats] | None:
    """Factor and summand that make 8 bits of each row."""
    if out is None:
        return None
    kept = np.minimum(factor.outputs, factor.width - 1)
    return _rows((1 / out.scale)[kept], rows), _rows(out.zero.astype(np.float64)[kept], rows)


def _panels(weight: NDArray[Any], nr: int, isa: InstructionSet) -> NDArray[Any]:
    blocks, outputs, inputs = weight.shape
    values = weight if weight.dtype == np.int8 else bfloat16(weight)
    per = STEP_BYTES // values.itemsize
    steps = -(-inputs // (per * isa.steps)) * isa.steps
    full = np.zeros((blocks, outputs, steps * per), values.dtype)
    full[..., :inputs] = values
    panels = full.view(np.uint32).reshape(blocks, -1, LANES * nr, steps).transpose(0, 1, 3, 2).copy()  # whole k-steps
    return panels.view(values.dtype).reshape(*panels.shape, per)


def _take_overflow(panels: NDArray[np.int8]) -> Overflow:
    """Take the overflow out of panels, in place."""
    steps, outputs, per = panels.shape[-3:]
    panels = panels.reshape(-1, steps, outputs, per)
    overflow = np.zeros((len(panels), steps // 2, outputs, per), np.int8)
    for sign in (1, -1):
        alike = np.maximum(sign * panels, 0).view(np.uint32)[..., 0]
        both = alike[:, ::2] + alike[:, 1::2]  # in each byte a sum of two
        sums = ((both & 0xFF00FF) + (both >> 8 & 0xFF00FF)).view(np.uint16).reshape(*both.shape, 2)
        panel, step, output, pair = np.nonzero(sums > MOST_OF_FOUR)
        over = (sums[panel, step, output, pair] - MOST_OF_FOUR).astype(np.int8)  # less than the first two add up to
        first = np.minimum(np.maximum(sign * panels[panel, 2 * step, output, 2 * pair], 0), over)
        overflow[panel, step, output, 2 * pair] += sign * first
        overflow[panel, step, output, 2 * pair + 1] += sign * (over - first)
    panels[:, ::2] -= overflow
    panel, step = np.nonzero(overflow.any((2, 3)))
    starts = np.searchsorted(panel, np.arange(len(panels) + 1))
    return Overflow(np.concatenate([starts, 2 * step]).astype(np.int32), overflow[panel, step])


def bfloat16(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Return the bits of the nearest bfloat16."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def filters_of(convolution: Convolution, weight: NDArray[Any]) -> NDArray[Any]:
    """Return a weight without the zeros between groups: (groups, outputs, inputs, taps), outputs and inputs of a group.

    Args:
        weight: as the factor has it, columns by tap and then by channel.
    """
    taps, per = convolution.kernel**2, convolution.channels // convolution.groups
    blocks, outputs, inputs = weight.shape
    count = inputs // (taps * per)
    full = weight.reshape(blocks, count, outputs // count, taps, count, per)
    return np.einsum("bigtip->bigpt", full).reshape(blocks * count, outputs // count, per, taps)
