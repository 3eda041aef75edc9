"""Stages of `csrc/program.h`: what a norm, a cast, taps or a factor become."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import structs
from ..instruction_sets import LANES, InstructionSet
from ..program import Convolution, Factor, Quantiser
from ..row_operators import Floats, Glu, Inner, InnerNorm, Norm, Places, QkNorm, RmsNorm, Rotary
from ..structs import Fields
from .layout import FILLED, groups_of, positions
from .packing import bfloat16, filters_of, ordered, pack
from .vectors import Vector

QUERIES = 32
"""Queries of a panel of the attention kernel."""


class StageBuilder:
    """Makes stages for an instruction set; their weights go to the constants."""

    def __init__(self, constants: structs.Constants, isa: InstructionSet) -> None:
        self.constants, self.isa = constants, isa

    def norm(self, norm: Norm | None, order: Places, out: Vector) -> Fields:
        """A norm of columns in that order, or a cast where there is none."""
        if norm is None:
            return self.cast(order, out)
        count = len(norm.weight)
        if count < len(order) and not np.array_equal(np.sort(order[:count]), np.arange(count)):
            raise ValueError(f"a norm of {count} channels that do not lie in front of the others")
        weight, bias = (np.append(values, np.zeros(len(order) - count)) for values in (norm.weight, norm.bias))
        if out.quantiser is not None:
            weight, bias = weight / out.quantiser.scale, bias / out.quantiser.scale + out.quantiser.zero
        values = {"eps": norm.eps, "scale": self.floats(weight[order]), "bias": self.floats(bias[order])}
        values |= {"blocks": 1, "outputs": count, "centred": not isinstance(norm, RmsNorm)}
        return {"action": structs.NORM, "inputs": len(order), **values, **self.columns(order, out)}

    def qk_norm(self, norm: QkNorm) -> Fields:
        """Norms of queries and keys in place, where all channels lie in their own order."""
        weight, bias = (
            np.concatenate([getattr(part, name) for part in (norm.queries, norm.keys)]) for name in ("weight", "bias")
        )
        channels, head_dim = np.arange(len(weight)), len(weight) // (2 * norm.heads)
        check_lanes(head_dim, "norms of heads of ")
        joined = self.norm(
            replace(norm.queries, weight=weight, bias=bias), channels, Vector(channels, None, structs.F32)
        )
        return {**joined, "blocks": 2 * norm.heads, "inputs": head_dim, "outputs": head_dim}

    def rotary(self, rotary: Rotary, out: Vector) -> Fields:
        """A rotation of queries and keys, where all channels lie in their own order."""
        _, tables, half = rotary.cos.shape
        check_lanes(half, "halves of heads of ")
        channels = np.arange(6 * rotary.heads * half)
        angles = {"weights": self.floats(np.concatenate([rotary.cos, rotary.sin], 2)), "across": tables}
        heads = {"blocks": 2 * rotary.heads, "inputs": len(channels), "outputs": 2 * half}
        return {"action": structs.ROTATE, **heads, **angles, **self.columns(channels, out)}

    def gather(self, rows: Places, row_bytes: int) -> dict[str, Any]:
        """A copy of rows (tokens, how many are joined) to the tile."""
        table = self.constants.add(rows.astype(np.int32))
        takes = {"reads": row_bytes, "writes": rows.shape[1] * row_bytes, "from_rows": int(rows.max()) + 1}
        return {"action": structs.GATHER, "inputs": row_bytes, "kernel": rows.shape[1], "out_columns": table, **takes}

    def scatter(self, rows: Places, row_bytes: int) -> Fields:
        """A copy of the tile to rows (tokens,)."""
        copy = self.gather(rows[:, None], row_bytes)
        rows_of_table = {"to_rows": copy.pop("from_rows")}
        return {**copy, "action": structs.SCATTER, **rows_of_table}

    def add(self, order: Places, to: Places) -> Fields:
        """An addition of bfloat16 columns in that order to the stream's."""
        columns = self.columns(order, Vector(to, None, structs.F32))
        return {"action": structs.ADD_BF16, "inputs": len(order), **columns, "reads": 2 * len(order)}

    def glu(self, channels: int, out: Vector) -> Fields:
        """A gate of twice as many channels, which lie in their own order."""
        check_lanes(channels, "a gate of ")
        scale, bias = self.to_type(np.arange(channels), out)
        stage = {"action": structs.GLU, "inputs": channels, "scale": scale, "bias": bias}
        return {**stage, **self.columns(np.arange(channels), out), "reads": 8 * channels}

    def inner(self, operator: Inner, order: Places, out: Vector) -> Fields:
        """What an operator makes of float32 channels in that order."""
        if isinstance(operator, InnerNorm):
            check_lanes(len(order), "a norm of ")
            return self.norm(operator.norm, order, out)
        if isinstance(operator, Glu):
            return self.glu(len(order) // 2, out)
        return self.rotary(operator, out) if isinstance(operator, Rotary) else self.cast(order, out)

    def cast(self, order: Places, out: Vector) -> Fields:
        """A cast of columns in that order."""
        scale, bias = self.to_type(order, out)
        stage = {"action": structs.CAST, "inputs": len(order), "scale": scale, "bias": bias}
        return {**stage, **self.columns(order, out)}

    def columns(self, order: Places, out: Vector) -> Fields:
        """Where channels in that order, of float32, are written."""
        group, places = groups_of(positions(out.order, len(order))[order])
        places = np.where(places < 0, len(out.order), places)
        takes = {"reads": 4 * len(order), "writes": _end(places, group, out.kind)}
        return {"type": out.kind, "group": group, "out_columns": self.constants.add(places.astype(np.int32)), **takes}

    def to_type(self, order: Places, out: Vector) -> tuple[int, int]:
        """What numbers in that order are multiplied by, and what is added, so that they are of the vector's type."""
        if out.quantiser is None:
            return self.floats(np.ones(len(order))), self.floats(np.zeros(len(order)))
        return self.floats(1 / out.quantiser.scale[order]), self.floats(out.quantiser.zero[order])

    def im2col(self, convolution: Convolution, grid: Vector) -> Fields:
        """The taps of a grid whose channels lie in their own order."""
        blocks, inputs = convolution.factor.inputs.shape
        outside = np.zeros(len(grid.order)) if grid.quantiser is None else np.rint(grid.quantiser.zero)
        geometry = ("side", "across", "kernel", "stride", "dilation", "padding")
        taps, item = convolution.kernel**2, structs.ITEM_BYTES[grid.kind]
        return {
            "action": structs.IM2COL,
            "blocks": blocks,
            "inputs": inputs // taps * item,
            "reads": blocks * (inputs // taps) * item,
            "writes": blocks * inputs * item,
            **{name: getattr(convolution, name) for name in geometry},
            "pad_values": self.constants.add(outside.astype(np.uint16 if grid.quantiser is None else np.uint8)),
        }

    def factor(self, factor: Factor, read: Vector, order: Places, out: Vector | None, first: int = 0) -> Fields:
        """A factor whose outputs are written to columns in that order.

        Args:
            out: the vector that they are; None where they are added to the stream.
            first: the channel there that its first output is.
        """
        place = positions(order, max(order.max() + 1, first + factor.width))[first : first + factor.width]
        # What is added for a dropped output is 0, and may be added anywhere.
        dropped = 0 if factor.adds else len(order)
        free = np.arange(2 * len(order)) if factor.adds else np.flatnonzero(order < 0)
        to_type = structs.F32 if out is None else out.kind
        packed = pack(factor, read.order, place, free, dropped, None if out is None else out.quantiser, self.isa)
        stage = {
            "action": structs.LINEAR,
            "type": read.kind,
            "blocks": factor.weight.shape[0],
            "inputs": len(read.order) // factor.weight.shape[0],
            "outputs": packed.outputs,
            "nr": packed.nr,
            "epilogue": _epilogue(factor),
            "to_type": to_type,
            "group": packed.group,
            "reads": len(read.order) * structs.ITEM_BYTES[read.kind],
            # What fills up a last run adds zeros to the next row.
            "writes": _end(packed.places - factor.adds * (FILLED - 1), packed.group, to_type),
            "spills": factor.adds and _end(packed.places, packed.group) > 4 * len(order),
        }
        arrays: dict[str, NDArray[Any]] = {"weights": packed.panels, "scale": packed.scale, "bias": packed.bias}
        if packed.overflow is not None:
            arrays |= {"overflow": packed.overflow.table, "overflow_weights": packed.overflow.weights}
        if packed.scale2 is not None and packed.bias2 is not None:
            arrays |= {"scale2": packed.scale2, "bias2": packed.bias2}
        arrays |= {"out_columns": packed.places}
        return stage | {name: self.constants.add(values) for name, values in arrays.items()}

    def grouped(self, convolution: Convolution, order: Places, out: Quantiser | None = None) -> Fields:
        """A convolution whose lanes are groups, sixteen at a time: its inputs and outputs are those of a group.

        In 8 bits a lane holds four channels, the last ones filled up with zeros.

        Args:
            order: of the stream, of whose columns the first convolution in float32 reads and the last one writes.
            out: how the outputs become 8 bits; None where they stay floats.
        """
        factor = convolution.factor
        weight, scale, bias = ordered(factor, np.sort(factor.inputs, axis=1).reshape(-1), self.isa)
        filters, of_sums = filters_of(convolution, weight), {"scale": scale.reshape(-1), "bias": bias.reshape(-1)}
        stage = {"kernel": convolution.kernel, "epilogue": _epilogue(factor)}
        if factor.quantiser is None:
            return stage | self._grouped_floats(filters, of_sums["bias"], order, adds=factor.adds)
        if out is not None:
            of_sums |= {"scale2": 1 / out.scale[: factor.width], "bias2": out.zero[: factor.width]}
        zero = np.append(np.rint(factor.quantiser.zero[: convolution.channels]), 0)[grouped_order(convolution)]
        outside = self.constants.add(zero.astype(np.uint8))
        return stage | self._grouped_bytes(filters, of_sums, order) | {"pad_values": outside}

    def _grouped_floats(self, filters: NDArray[Any], bias: Floats, order: Places, *, adds: bool) -> dict[str, Any]:
        """Filters (groups, outputs, inputs, taps), a lane for each channel of a group."""
        groups, outputs, inputs, _ = filters.shape
        of_group, count = outputs if adds else inputs, -(-groups // LANES) * LANES
        columns = np.arange(count * of_group).reshape(-1, LANES, of_group).transpose(0, 2, 1).reshape(-1)
        at = positions(order, max(len(order), count * of_group))
        return {
            "inputs": inputs,
            "outputs": outputs,
            "weights": self.floats(_in_lanes(filters.transpose(0, 3, 2, 1))),
            "bias": self.floats(_in_lanes(bias.reshape(-1, outputs))),
            # Of unused lanes too.
            "out_columns": self.constants.add(np.maximum(at[columns], 0).astype(np.int32)),
            "writes": _end(at[columns], 1),
        }

    def _grouped_bytes(self, filters: NDArray[Any], of_sums: Mapping[str, Floats], order: Places) -> dict[str, Any]:
        """Filters (groups, outputs, inputs, taps), a lane for four channels of a group; zeros fill them up."""
        groups, outputs, inputs, taps = filters.shape
        padded = np.pad(filters, ((0, 0), (0, -outputs % 4), (0, -inputs % 4), (0, 0)))
        fours = padded.reshape(*padded.shape[:2], -1, 4, taps).transpose(0, 4, 2, 1, 3)
        channels = _in_fours(groups, outputs)
        at = np.append(positions(order, max(len(order), groups * outputs)), -1)[channels]
        group, places = groups_of(_by_vector(at))
        of_block = places.reshape(-(-groups // LANES), -1)
        return {
            "type": structs.U8,
            "inputs": padded.shape[2] // 4,
            "outputs": padded.shape[1],
            "weights": self.constants.add(_in_lanes(fours)),
            **{name: self.floats(_in_lanes(np.append(sums, 0)[channels])) for name, sums in of_sums.items()},
            "group": group,
            # What is added for a dropped output is 0, and goes to a column of its block, which is one thread's.
            "out_columns": self.constants.add(
                np.where(of_block < 0, of_block.max(axis=1, keepdims=True), of_block).astype(np.int32)
            ),
            "writes": _end(places, group),
        }

    def pairs(self, table: Floats, index: Places) -> int:
        """Keep biases table[:, index], index (kinds, queries, keys), as bfloat16: by panels of queries, then by key.

        A softmax does not change with what all of a query's biases have in common. Without their largest one those that
        count most are rounded least.
        """
        kinds, queries, keys = index.shape
        padded = np.pad(index, ((0, 0), (0, -queries % QUERIES), (0, 0)), mode="edge")
        by_panel = padded.reshape(kinds, -1, QUERIES, keys).transpose(0, 1, 3, 2)
        biases = table[:, by_panel].swapaxes(0, 1)
        return self.constants.add(bfloat16(biases - biases.max(3, keepdims=True)))

    def floats(self, values: NDArray[Any]) -> int:
        """Keep float32 constants."""
        return self.constants.add(values.astype(np.float32))


def grouped_order(convolution: Convolution) -> Places:
    """Return the order of a grid that a convolution by groups reads in 8 bits: sixteen groups of four channels each."""
    return _by_vector(_in_fours(convolution.groups, convolution.channels // convolution.groups))


def _in_fours(groups: int, channels: int) -> Places:
    """The channels of each group, (groups, channels), filled up with -1 to whole vectors and fours."""
    by_group = np.arange(groups * channels).reshape(groups, channels)
    return np.pad(by_group, ((0, -groups % LANES), (0, -channels % 4)), constant_values=-1)


def _by_vector(by_group: Places) -> Places:
    """(groups, channels) in the order of 8-bit vectors: sixteen groups, each with four channels, then the next four."""
    return by_group.reshape(-1, LANES, by_group.shape[1] // 4, 4).transpose(0, 2, 1, 3).reshape(-1)


def _in_lanes(by_group: NDArray[Any]) -> NDArray[Any]:
    """(groups, ...) -> (sixteens, ..., 16), or (..., 16, 4) where four bytes are a lane's; zeros fill up the groups."""
    full = np.pad(by_group, ((0, -len(by_group) % LANES), *((0, 0),) * (by_group.ndim - 1)))
    last = full.ndim - 1 if full.dtype == np.int8 else full.ndim
    return np.moveaxis(full.reshape(-1, LANES, *full.shape[1:]), 1, last)


def _end(places: NDArray[Any], group: int, kind: int = structs.F32) -> int:
    """Bytes of a row that groups at those places are written to; negative ones are dropped or add 0 to the first."""
    return (int(places.max()) + group) * structs.ITEM_BYTES[kind]


def _epilogue(factor: Factor) -> int:
    if factor.silu:
        return structs.SILU_ADD if factor.adds else structs.SILU
    return structs.ADD if factor.adds else structs.GELU if factor.gelu else structs.STORE


def check_lanes(channels: int, what: str = "") -> None:
    """Raise ValueError where channels do not fill whole vectors."""
    if channels % LANES:
        raise ValueError(f"{what}{channels} channels: the kernels take multiples of {LANES}")
