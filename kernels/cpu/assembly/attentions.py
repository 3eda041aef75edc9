"""Steps between tokens: attentions, performers and merges."""

from collections.abc import Sequence
from math import isqrt
from typing import Any

import numpy as np

from .. import structs
from ..instruction_sets import LANES
from ..program import (
    Attention,
    BiasedAttention,
    Depthwise,
    Factor,
    Merge,
    Operator,
    Performer,
    ResponseNorm,
    WindowedAttention,
)
from ..row_operators import AddTransposed, InnerNorm, Places, Transposition
from ..shape_checks import State
from ..structs import Fields, Tables
from .stages import StageBuilder, check_lanes
from .vectors import Rows, Vector, inputs_of, vector


class Attentions:
    """Adds such steps to the tables of a program."""

    def __init__(self, tables: Tables, stages: StageBuilder) -> None:
        self.tables, self.stages = tables, stages

    def attention(
        self, attention: Attention, qkv: Rows, counts: tuple[int, int], sizes: Fields | None, behind: Sequence[Operator]
    ) -> Rows:
        """An attention; what the operators behind it read.

        Args:
            counts: of its tokens, and of the first of them, which are queries.
            sizes: of the tokens, if some are merged.
        """
        if attention.head_dim % LANES:
            raise ValueError(f"heads of {attention.head_dim} channels: the kernels take multiples of {LANES}")
        (tokens, queries), inner = counts, attention.heads * attention.head_dim
        order = qkv.vector.order[2 * inner :] - 2 * inner
        reader = next(operator for operator in behind if isinstance(operator, Factor | InnerNorm))
        out = vector(order, reader.quantiser) if isinstance(reader, Factor) else Vector(order, None, structs.F32)
        to = self.tables.rows(f"attention's outputs {out.kind}", out.row_bytes, queries)
        values: dict[str, Any] = {"to_type": out.kind, "rows": tokens, "queries": queries, "windows": 1}
        if out.quantiser is not None:
            values["scale"], values["bias"] = self.stages.to_type(out.order, out)
        if isinstance(attention, BiasedAttention):
            values |= self._biases(attention, queries)
        size = structs.attention_bytes(values["rows"], attention.head_dim)
        weighted = [(tokens, 4)] if sizes else []
        self.tables.step(
            structs.ATTENTION,
            [qkv.buffer, to, *([sizes] if sizes else [])],
            takes=[(tokens, 6 * inner), (queries, inner * structs.ITEM_BYTES[out.kind]), *weighted],
            heads=attention.heads,
            width=attention.head_dim,
            weighted=int(sizes is not None),
            scratch=self.tables.place(("scratch", size), size),
            **values,
        )
        return Rows(out, to, qkv.places)

    def _biases(self, attention: BiasedAttention, queries: int) -> dict[str, Any]:
        """The biases of all tokens, or of those of windows."""
        index, kinds, sizes = attention.index[None, :queries], np.zeros(1, np.int64), dict[str, int]()
        if isinstance(attention, WindowedAttention):
            index, kinds, (windows, rows) = attention.index, attention.kinds, attention.windows.shape
            sizes = {"windows": windows, "rows": rows, "queries": rows}
        if not attention.table.any():
            return sizes
        pairs = {"pairs": self.stages.pairs(attention.table, index)}
        return {"biased": 1, "kinds": self.tables.constants.add(kinds.astype(np.int32)), **pairs, **sizes}

    def depthwise(self, conv: Depthwise, stream: Fields, order: Places, tokens: int) -> Rows:
        """A depthwise convolution of the stream, whose channels lie in that order."""
        channels, kernel, _ = conv.weight.shape
        weight = conv.weight[order].reshape(-1, LANES, kernel**2).transpose(0, 2, 1)
        out = Vector(order, None, structs.F32)
        to, side = self.tables.rows("convolved", out.row_bytes, tokens), isqrt(tokens)
        size = structs.depthwise_bytes(side, channels, kernel)
        self.tables.step(
            structs.DEPTHWISE,
            [stream, to],
            takes=[(tokens, 4 * channels)] * 2,
            rows=tokens,
            side=side,
            channels=channels,
            patch=kernel,
            start=self.stages.floats(weight),
            bias=self.stages.floats(conv.bias[order]),
            scratch=self.tables.place(("depthwise", size), size),
        )
        return Rows(out, to)

    def response_norm(self, norm: ResponseNorm, outputs: Rows, tokens: int) -> Rows:
        """A global response norm of what a factor gave, in place; two steps, since its sums are over all tokens."""
        channels = len(norm.weight)
        check_lanes(channels, "a response norm of ")
        sums = self.tables.rows("squares", 4 * channels, 1)
        values: dict[str, Any] = {"takes": [(tokens, 4 * channels), (1, 4 * channels)], "rows": tokens}
        self.tables.step(structs.SQUARES, [outputs.buffer, sums], channels=channels, **values)
        values |= {"scale": self.stages.floats(norm.weight), "bias": self.stages.floats(norm.bias)}
        values |= {"epsilon": norm.eps, "scratch": self.tables.place(("response norm", channels), 4 * channels)}
        self.tables.step(structs.RESPONSE_NORM, [outputs.buffer, sums], channels=channels, **values)
        return outputs

    def transposed(
        self,
        operator: Transposition,
        read: Rows,
        stream: Fields,
        order: Places,
        tokens: int,
        behind: Sequence[Operator],
    ) -> Rows | None:
        """The channels of so many tokens as rows, or such rows added to the stream, whose columns are in that order."""
        width = len(order)
        if isinstance(operator, AddTransposed):
            values: dict[str, Any] = {"rows": width, "features": tokens, "to_type": structs.F32}
            takes = [(width, 4 * tokens), (tokens, 4 * width)]
            self._transpose([read.buffer, stream], order, takes, values)
            return None
        rows = np.arange(tokens + -tokens % LANES)
        out = inputs_of(first_factor(behind), self.stages.isa, [rows[:tokens]])
        to, columns = self.tables.rows("transposed", out.row_bytes, width), self.stages.columns(rows, out)
        scale, bias = self.stages.to_type(np.minimum(rows, tokens - 1), out)
        values = {"rows": tokens, "features": width, "to_type": out.kind, "scale": scale, "bias": bias, **columns}
        self._transpose([read.buffer, to], rows, [(tokens, 4 * width), (width, columns["writes"])], values)
        return Rows(out, to)

    def _transpose(self, buffers: list[Fields], rows: Places, takes: list[tuple[int, int]], values: Fields) -> None:
        """The step whose column i is the row `rows[i]` of the first buffer; rows that there are not are zeros."""
        kinds = self.stages.constants.add(rows.astype(np.int32))
        self.tables.step(structs.TRANSPOSE, buffers, takes=takes, channels=len(rows), kinds=kinds, **values)

    def performer(self, performer: Performer, qkv: Rows, tokens: int, reader: Factor) -> tuple[Fields, Rows]:
        """A performer of so many tokens. Return the stream, which its values are from now on, and what is read next."""
        features, width = performer.w.shape
        check_lanes(width, "a performer of ")
        order = np.arange(width)
        values = Vector(order, None, structs.F32)
        stream = self.tables.rows("stream", values.row_bytes, tokens)
        out = inputs_of(reader, self.stages.isa, [order])
        to = self.tables.rows(f"attention's outputs {out.kind}", out.row_bytes, tokens)
        padded = -(-features // LANES) * LANES
        w, gain = np.zeros((width, padded)), np.zeros((1, padded))
        w[:, :features], gain[:, :features] = performer.w.T * np.log2(np.e), features**-0.5
        scale, bias = self.stages.to_type(order, out)
        columns = self.stages.columns(order, out)
        size = structs.performer_bytes(width, padded)
        self.tables.step(
            structs.PERFORMER,
            [qkv.buffer, stream, to],
            takes=[(tokens, item_bytes) for item_bytes in (12 * width, 4 * width, columns["writes"])],
            rows=tokens,
            width=width,
            features=padded,
            epsilon=performer.eps,
            to_type=out.kind,
            start=self.stages.floats(np.concatenate([w, gain])),
            scale=scale,
            bias=bias,
            scratch=self.tables.place(("performer", size), size),
            **columns,
        )
        return stream, Rows(out, to)

    def merge(
        self, merge: Merge, keys: Rows, old: Fields, before: State, sizes_before: Fields | None
    ) -> tuple[Fields, Fields]:
        """Merge tokens of a stream by the keys of the attention before. Return the new one, and its tokens' sizes."""
        rows, left, row_bytes = before.tokens, before.tokens - merge.count, 4 * before.width
        stream, sizes = self.tables.rows("stream", row_bytes, left), self.tables.rows("sizes", 4, left)
        weights, many = (sizes_before, rows) if sizes_before else (sizes, left)
        size = structs.merge_bytes(rows, merge.head_dim)
        self.tables.step(
            structs.MERGE,
            [keys.buffer, old, stream, sizes, weights],
            takes=[
                (rows, 6 * merge.heads * merge.head_dim),
                (rows, row_bytes),
                (left, row_bytes),
                (left, 4),
                (many, 4),
            ],
            rows=rows,
            heads=merge.heads,
            width=merge.head_dim,
            prefix=merge.prefix,
            merged=merge.count,
            channels=before.width,
            protect=merge.protect,
            weighted=before.sized,
            scratch=self.tables.place(("merge", size), size),
        )
        return stream, sizes

    def unmerge(self, old: Fields, sizes: Fields, before: State) -> Fields:
        """Repeat tokens of a stream by their sizes. Return the new stream."""
        rows, repeated, row_bytes = before.tokens, before.tokens + before.merged, 4 * before.width
        stream = self.tables.rows("stream", row_bytes, repeated)
        takes = [(rows, row_bytes), (rows, 4), (repeated, row_bytes)]
        self.tables.step(
            structs.UNMERGE, [old, sizes, stream], takes=takes, rows=rows, merged=before.merged, channels=before.width
        )
        return stream


def first_factor(operators: Sequence[Operator]) -> Factor:
    """Return the first factor of operators."""
    return next(operator for operator in operators if isinstance(operator, Factor))
