"""Vectors of channels as they lie in memory: their order, their number type, and the bytes of a row of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile, pairwise, takewhile
from typing import cast

import numpy as np

from .. import structs
from ..instruction_sets import LANES, InstructionSet
from ..program import Attention, Factor, Operator, Performer, Pyramid, Quantiser
from ..row_operators import Join, Keep, NewStream, Norm, Places, ReadStream, StartTokens
from .layout import order_for
from .packing import STEP_BYTES


@dataclass(frozen=True, eq=False)
class Vector:
    """A row's channels.

    Args:
        order: the channel at each position, -1 where there is none.
        quantiser: how they become 8 bits; None where they are floats.
        kind: their number type, one of `structs`.
    """

    order: Places
    quantiser: Quantiser | None
    kind: int

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, with room behind it for outputs that are dropped."""
        return (
            -(-(len(self.order) + 4 * LANES) * structs.ITEM_BYTES[self.kind] // structs.ALIGNMENT) * structs.ALIGNMENT
        )


@dataclass(frozen=True, eq=False)
class Rows:
    """A vector for each token of all images, and its buffer.

    Args:
        places: the row of each token, where they lie in windows.
    """

    vector: Vector
    buffer: structs.Fields
    places: Places | None = None


def inputs_of(factor: Factor, isa: InstructionSet, written: Sequence[Places], room: int = 0) -> Vector:
    """Return the vector that a factor reads; each block begins with a k-step of the panels, as AMX likes them.

    Args:
        written: the channels that each block of its writer gives.
        room: rows that a block of its writer may have.
    """
    step = isa.steps * STEP_BYTES // structs.ITEM_BYTES[_kind(factor.quantiser)]
    return vector(order_for(factor.inputs, written, room, step), factor.quantiser)


def vector(order: Places, quantiser: Quantiser | None = None) -> Vector:
    """Return a vector of 8-bit numbers, or of bfloat16 where there is no quantiser."""
    return Vector(order, quantiser, _kind(quantiser))


def _kind(quantiser: Quantiser | None) -> int:
    return structs.BF16 if quantiser is None else structs.U8


def stream_order(operators: Sequence[Operator], width: int) -> Places:
    """Channels of the stream, in the order in which the factor with most blocks that reads a norm of it takes them.

    In each of its blocks they come in the order in which the factor with most blocks adds to them. What starts the
    stream anew, or is another's values, comes in the channels' own order.
    """
    of_this = list(
        takewhile(
            lambda operator: not isinstance(operator, Pyramid | Performer | Join | NewStream | StartTokens), operators
        )
    )
    adding = [operator for operator in of_this if isinstance(operator, Factor) and operator.adds]
    reading = [
        reader
        for norm, reader in pairwise(of_this)
        if isinstance(norm, Norm | ReadStream) and isinstance(reader, Factor)
    ]
    if not adding:
        return np.arange(width)
    order = np.concatenate(kept_outputs(max(adding, key=lambda factor: len(factor.outputs))))
    if reading:
        order = order_for(max(reading, key=lambda factor: len(factor.inputs)).inputs, [order])
    return order[order >= 0]


def readers(behind: Sequence[Operator]) -> Sequence[Operator]:
    """Operators from the one on that reads what was given: of what is kept, from the next attention on."""
    kept = bool(behind) and isinstance(behind[0], Keep)
    return list(dropwhile(lambda operator: kept and not isinstance(operator, Attention), behind))


def qkv_order(writer: Factor | None, attention: Attention, reader: Factor) -> Places:
    """Channels of queries, keys and values: heads in their order, and in each what is easy to write.

    Queries and keys of all heads have to lie in one order, values where the reader's blocks are contiguous.

    Args:
        writer: None where what writes them has the channels in their own order.
    """
    width, readers = 3 * attention.heads * attention.head_dim, _blocks(reader.inputs, int(reader.inputs.max()) + 1)
    writers = np.zeros(width, np.int64) if writer is None else _blocks(writer.outputs, width)
    heads = np.arange(width).reshape(3, attention.heads, attention.head_dim)
    order = np.argsort(writers[heads], axis=2, kind="stable")
    if (order[:2] != order[0, 0]).any():
        order[:2] = np.arange(attention.head_dim)
    values = heads[2] - 2 * attention.heads * attention.head_dim
    order[2] = np.lexsort((writers[heads[2]], readers[values]), axis=1)
    return np.take_along_axis(heads, order, axis=2).reshape(-1)


def kept_outputs(factor: Factor) -> list[Places]:
    """Return the channels that each block of a factor gives."""
    return [channels[channels < factor.width] for channels in factor.outputs]


def _blocks(channels: Places, count: int) -> Places:
    """The block of each channel."""
    blocks = np.zeros(max(count, int(channels.max()) + 1), np.int64)
    blocks[channels] = np.arange(len(channels))[:, None]
    return blocks


def by_heads(operators: Sequence[Operator]) -> list[Operator]:
    """Return operators in which what reads an attention takes heads one behind the other, as the kernel writes them.

    A factor whose blocks are of other channels, or filled up, becomes one block with zeros in it.
    """
    changed = list(operators)
    for place, attention in enumerate(changed):
        if isinstance(attention, Attention):
            at = next(at for at in range(place, len(changed)) if isinstance(changed[at], Factor))
            reader, heads = cast(Factor, changed[at]), np.arange(attention.heads * attention.head_dim)
            if not np.array_equal(np.sort(reader.inputs).ravel(), heads):
                changed[at] = _one_block(reader, heads)
    return changed


def _one_block(factor: Factor, inputs: Places) -> Factor:
    """A factor in one block that reads those channels."""
    blocks, outputs, _ = factor.weight.shape
    weight = np.zeros((blocks, outputs, factor.inputs.size), factor.weight.dtype)
    np.put_along_axis(weight, factor.inputs[:, None], factor.weight, 2)
    scale = None if factor.scale is None else factor.scale.reshape(1, -1)
    weight = weight.reshape(1, blocks * outputs, -1)[..., inputs]
    return replace(factor, weight=weight, scale=scale, inputs=inputs[None], outputs=factor.outputs.reshape(1, -1))
