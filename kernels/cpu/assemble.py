"""Assembles a program for an instruction set: orders of channels, packed weights, buffers, steps."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from . import structs
from .grids import TILE_ROWS, Grids, tile_rows
from .instruction_sets import LANES, InstructionSet
from .program import (
    Attention,
    Branch,
    Embed,
    Factor,
    Grid,
    JoinedHead,
    Merge,
    Norm,
    Operator,
    Performer,
    Places,
    Program,
    Pyramid,
    Renew,
)
from .shape_inference import State, infer_shapes
from .stages import StageBuilder, TileStep, check_lanes
from .structs import LEAST_ROWS, Assembled, Fields, from_row
from .vectors import Rows, Vector, by_heads, inputs_of, kept_outputs, qkv_order, stream_order, vector

ARENA_BYTES, ARENA_OF_WEIGHTS = 1 << 26, 16
"""The arena of a thread takes at most the first, in bytes, and the second for each byte of weights."""

OnRows = Norm | Renew | Factor | Grid | Pyramid


def assemble(program: Program, isa: InstructionSet) -> Assembled:
    """Assemble a program.

    Raises:
        ValueError: what it computes does not fit the kernels; one line that says why.
    """
    return _Assembly(program, isa).run()


class _Assembly:
    """What has been assembled so far.

    Args:
        states: before the first operator, and behind each.
        state: what there is where the next step begins.
        order, stream: of the stream: the order of its channels, and where it lies.
        sizes, keys: of the tokens, once some are merged; queries, keys and values of the last attention.
    """

    order: Places
    stream: Fields
    sizes: Fields
    keys: Rows

    def __init__(self, program: Program, isa: InstructionSet) -> None:
        self.states = infer_shapes(program)
        self.state = self.states[0]
        self.program, self.isa = replace(program, operators=by_heads(program.operators)), isa
        self.tables = structs.Tables()
        self.stages = StageBuilder(self.tables.constants, isa)
        self.grids = Grids(self.tables, self.stages)

    def run(self) -> Assembled:
        self._begin()
        between, attended, read = list[OnRows](), None, None
        for place, operator in enumerate(self.program.operators):
            if isinstance(operator, Norm | Renew | Factor | Grid):
                between.append(operator)
                continue
            if between:
                read = self._between(between, attended, self.program.operators[place:])
                between, attended = [], None
            before, self.state = self.state, self.states[place + 1]
            if isinstance(operator, Pyramid):
                between = [operator]
            elif isinstance(operator, Branch):
                self.grids.branch(operator, self.stream, self.order)
            elif isinstance(operator, Merge):
                self._merge(operator, before)
            else:
                assert read is not None, "infer_shapes lets no attention follow anything but a factor"
                attended = self._attended(operator, read, before, _factor(self.program.operators[place:]))
        self._between(between, attended, [])
        output, constants = self._head(), self.tables.constants.memory()
        arena, limit = self.tables.arena.size, ARENA_BYTES + ARENA_OF_WEIGHTS * len(constants)
        if arena > limit:
            raise ValueError(f"{arena} bytes of memory a thread: at most {limit} beside {len(constants)} of weights")
        return Assembled(
            self.isa,
            structs.table(self.tables.steps, structs.STEP),
            structs.table(self.tables.stages, structs.STAGE),
            structs.table(self.tables.buffers, structs.BUFFER),
            constants,
            arena,
            output["offset"],
            self.state.width * (1 + isinstance(self.program.head, JoinedHead)),
            self.program.head.classifier.width,
            self.program.embed.size,
        )

    def _begin(self) -> None:
        """The images as tokens, or as the first grid."""
        if isinstance(self.program.embed, Embed):
            self.order, self.stream = self.grids.patches(self.program.embed, self.program.operators)
        else:
            self.grids.pixels(self.program.embed, self.program.operators)

    def _between(self, operators: Sequence[OnRows], attended: Rows | None, behind: Sequence[Operator]) -> Rows | None:
        """One step of the operators from an attention, a merge or a pyramid to the next; what an attention then reads.

        Args:
            behind: the operators from that next one on.
        """
        if not operators:
            return None
        step = TileStep() if isinstance(operators[0], Pyramid) else TileStep.of(self.stream, attended)
        for place, operator in enumerate(operators):
            behind_it = [*operators[place + 1 :], *behind]
            if isinstance(operator, Pyramid):
                self._pyramid(step, operator, behind_it)
            elif isinstance(operator, Renew):  # each row is read before it is written, in the same order
                step.add(self.stages.norm(operator.norm, self.order, Vector(self.order, None, structs.F32)), 0, 0)
            elif isinstance(operator, Grid):
                self.grids.cast(step, self.order, self.state.tokens, operator.prefix, behind_it)
            else:
                self._on_rows(step, operator, behind_it)
        rows = tile_rows(operators[0].convolutions) if isinstance(operators[0], Pyramid) else TILE_ROWS
        buffers = step.placed(self.tables, rows)
        self.tables.step(structs.ROWS, buffers, step.stages, rows=self.state.tokens, tile=rows)
        return step.result

    def _on_rows(self, step: TileStep, operator: Norm | Factor, behind: Sequence[Operator]) -> None:
        """The stage of a norm or a factor."""
        if isinstance(operator, Factor) and operator.adds:
            return step.add(self.stages.factor(operator, step.given, self.order, None), step.at, 0)
        out = self._read_by(operator, behind)
        if isinstance(operator, Norm):
            stage, read = self.stages.norm(operator, self.order, out), 0
        else:
            stage, read = self.stages.factor(operator, step.given, out.order, out), step.at
        if isinstance(behind[0], Factor):
            return step.add(stage, read, step.gives(out, out))
        step.result = Rows(out, self.tables.rows("attention's inputs", out.row_bytes, self.state.tokens))
        return step.add(stage, read, step.gives(step.result.buffer, out))

    def _read_by(self, operator: Norm | Factor, behind: Sequence[Operator]) -> Vector:
        """The vector that an operator gives, as the next one reads it."""
        reader = behind[0]
        if isinstance(reader, Factor):
            if isinstance(operator, Norm):
                return inputs_of(reader, self.isa, [self.order])
            room = self.isa.room_for(operator.weight.shape[1])
            return inputs_of(reader, self.isa, kept_outputs(operator), room)
        assert isinstance(operator, Factor)
        if isinstance(reader, Performer):
            return Vector(np.arange(operator.width), None, structs.F32)
        assert isinstance(reader, Attention)
        return vector(qkv_order(operator, reader, _factor(behind)))

    def _pyramid(self, step: TileStep, pyramid: Pyramid, behind: Sequence[Operator]) -> None:
        """The stages of a pyramid. What it gives stays in the tile where a performer starts the stream anew."""
        check_lanes(self.state.width)
        self.order = stream_order(behind, self.state.width)
        out = Vector(self.order, None, structs.F32)
        readers = (operator for operator in behind if not isinstance(operator, Norm | Factor))
        if isinstance(next(readers, None), Performer):
            step.buffers.append(out)
        else:
            self.stream = self.tables.rows("stream", out.row_bytes, self.state.tokens)
            step.buffers.append(self.stream)
        self.grids.pyramid(step, pyramid, self.order, out)

    def _attended(self, operator: Attention | Performer, qkv: Rows, before: State, reader: Factor) -> Rows:
        if isinstance(operator, Performer):
            return self._performer(operator, qkv, reader)
        self.keys = qkv
        return self._attention(operator, qkv, before, reader)

    def _attention(self, attention: Attention, qkv: Rows, before: State, reader: Factor) -> Rows:
        if attention.head_dim % LANES:
            raise ValueError(f"heads of {attention.head_dim} channels: the kernels take multiples of {LANES}")
        inner, queries = attention.heads * attention.head_dim, self.state.tokens
        out = vector(qkv.vector.order[2 * inner :] - 2 * inner, reader.quantiser)
        to = self.tables.rows(f"attention's outputs {out.kind}", out.row_bytes, queries)
        values: dict[str, Any] = {"to_type": out.kind, "queries": queries}
        if out.quantiser is not None:
            values["scale"], values["bias"] = self.stages.to_type(out.order, out)
        size = structs.attention_bytes(before.tokens, attention.head_dim)
        weighted = [(before.tokens, 4)] * before.sized
        self.tables.step(
            structs.ATTENTION,
            [qkv.buffer, to, *([self.sizes] if weighted else [])],
            takes=[(before.tokens, 6 * inner), (queries, inner * structs.ITEM_BYTES[out.kind]), *weighted],
            rows=before.tokens,
            heads=attention.heads,
            width=attention.head_dim,
            weighted=before.sized,
            scratch=self.tables.place(("scratch", size), size),
            **values,
        )
        return Rows(out, to)

    def _performer(self, performer: Performer, qkv: Rows, reader: Factor) -> Rows:
        """A performer; its values are the stream from now on."""
        features, width = performer.w.shape
        check_lanes(width, "a performer of ")
        self.order = np.arange(width)
        values = Vector(self.order, None, structs.F32)
        self.stream = self.tables.rows("stream", values.row_bytes, self.state.tokens)
        out = inputs_of(reader, self.isa, [self.order])
        to = self.tables.rows(f"attention's outputs {out.kind}", out.row_bytes, self.state.tokens)
        padded = -(-features // LANES) * LANES
        w, gain = np.zeros((width, padded)), np.zeros((1, padded))
        w[:, :features], gain[:, :features] = performer.w.T * np.log2(np.e), features**-0.5
        scale, bias = self.stages.to_type(self.order, out)
        columns = self.stages.columns(self.order, out)
        size = structs.performer_bytes(width, padded)
        self.tables.step(
            structs.PERFORMER,
            [qkv.buffer, self.stream, to],
            takes=[(self.state.tokens, item_bytes) for item_bytes in (12 * width, 4 * width, columns["writes"])],
            rows=self.state.tokens,
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
        return Rows(out, to)

    def _merge(self, merge: Merge, before: State) -> None:
        """Merge tokens of the stream into a new one, by the keys of the attention before."""
        old, rows, left, stream = self.stream, before.tokens, self.state.tokens, 4 * self.state.width
        self.stream, sizes = self.tables.rows("stream", stream, left), self.tables.rows("sizes", 4, left)
        weights, many = (self.sizes, rows) if before.sized else (sizes, left)
        size = structs.merge_bytes(rows, merge.head_dim)
        self.tables.step(
            structs.MERGE,
            [self.keys.buffer, old, self.stream, sizes, weights],
            takes=[(rows, 6 * merge.heads * merge.head_dim), (rows, stream), (left, stream), (left, 4), (many, 4)],
            rows=rows,
            heads=merge.heads,
            width=merge.head_dim,
            prefix=merge.prefix,
            merged=merge.count,
            channels=self.state.width,
            protect=merge.protect,
            weighted=before.sized,
            scratch=self.tables.place(("merge", size), size),
        )
        self.sizes = sizes

    def _head(self) -> Fields:
        head, (classified, order) = self.program.head, self._classified()
        normed, width = inputs_of(head.classifier, self.isa, [order]), len(order)
        embedding, answers = (Vector(np.arange(size), None, structs.F32) for size in (width, head.classifier.width))
        output = self.tables.rows("output", 4 * width + answers.row_bytes, 1)
        logits = {**output, "offset": output["offset"] + 4 * width}
        tile = self.tables.tile(LEAST_ROWS, 0, normed.kind, normed.row_bytes)
        stages = [
            {**self.stages.norm(head.norm, order, embedding), "from": 0, "to": 2},
            {**self.stages.norm(head.norm, order, normed), "from": 0, "to": 1},
            {**self.stages.factor(head.classifier, normed, answers.order, answers), "from": 1, "to": 3},
        ]
        self.tables.step(structs.ROWS, [classified, tile, output, logits], stages, rows=1, tile=LEAST_ROWS)
        return output

    def _classified(self) -> tuple[Fields, Places]:
        """What is classified, and the order of its channels: the first token, a mean of tokens, or both."""
        head, width = self.program.head, self.state.width
        if (first := head.mean_from) is None:
            return self.stream, self.order
        joined, rows = isinstance(head, JoinedHead), getattr(head, "count", None) or self.state.tokens - first
        row = self.tables.rows("mean", 4 * width * (1 + joined), 1)
        mean = {**row, "offset": row["offset"] + 4 * width * joined}
        takes = [(rows, 4 * width), (1, 4 * width)]
        self.tables.step(structs.MEAN, [from_row(self.stream, first), mean], takes=takes, rows=rows, channels=width)
        if not joined:
            return row, self.order
        stage = {**self.stages.cast(self.order, Vector(self.order, None, structs.F32)), "from": 0, "to": 1}
        self.tables.step(structs.ROWS, [self.stream, row], [stage], rows=1, tile=LEAST_ROWS)
        return row, np.concatenate([self.order, self.order + width])


def _factor(operators: Sequence[Operator]) -> Factor:
    return next(operator for operator in operators if isinstance(operator, Factor))
