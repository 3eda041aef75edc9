"""Assembles a program for an instruction set: orders of channels, packed weights, buffers, steps."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .. import structs
from ..instruction_sets import InstructionSet
from ..program import (
    Attention,
    Branch,
    Depthwise,
    Embed,
    Factor,
    Grid,
    JoinedHead,
    Merge,
    OnRows,
    OnTiles,
    OnTokens,
    Operator,
    Performer,
    Program,
    Pyramid,
    ResponseNorm,
    WindowedAttention,
)
from ..row_operators import (
    AddValues,
    Glu,
    Inner,
    Join,
    Keep,
    NewStream,
    Norm,
    Places,
    PostNorm,
    QkNorm,
    ReadStream,
    Renew,
    Rotary,
    StartTokens,
    Transposition,
    Unmerge,
)
from ..shape_checks import State
from ..shape_inference import infer_shapes
from ..structs import Assembled, Fields, from_column
from .attentions import Attentions, first_factor
from .grids import TILE_ROWS, Grids, tile_rows
from .head import StreamRows, add_head
from .stages import StageBuilder, check_lanes
from .tile_step import TileStep
from .vectors import Rows, Vector, by_heads, inputs_of, kept_outputs, qkv_order, readers, stream_order, vector


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
        self.grids, self.attentions = Grids(self.tables, self.stages), Attentions(self.tables, self.stages)

    def run(self) -> Assembled:
        self._begin()
        between, attended, read = list[OnTiles](), None, None
        for place, operator in enumerate(self.program.operators):
            if isinstance(operator, OnRows | Grid):
                between.append(operator)
                continue
            if between:
                read = self._between(between, attended, self.program.operators[place:])
                between, attended = [], None
            before, self.state = self.states[place : place + 2]
            if isinstance(operator, Pyramid | Join):
                between = [operator]
            elif isinstance(operator, Depthwise):
                attended = self.attentions.depthwise(operator, self.stream, self.order, before.tokens)
            elif isinstance(operator, StartTokens):
                self.order, self.stream = self.grids.start(operator.start, self.program.operators[place + 1 :])
            elif isinstance(operator, Branch):
                self.grids.branch(operator, self.stream, self.order)
            elif isinstance(operator, Merge):
                sizes = self.sizes if before.sized else None
                self.stream, self.sizes = self.attentions.merge(operator, self.keys, self.stream, before, sizes)
            elif isinstance(operator, Unmerge):
                self.stream = self.attentions.unmerge(self.stream, self.sizes, before)
            else:
                assert read is not None, "infer_shapes lets no attention follow anything but a factor"
                attended = self._attended(operator, read, before, self.program.operators[place + 1 :])
        self._between(between, attended, [])
        tokens, stream = self.state.tokens, StreamRows(self.stream, self.order)
        output = add_head(self.tables, self.stages, self.program.head, tokens, stream)
        constants, arena = self.tables.memory()
        return Assembled(
            self.isa,
            structs.table(self.tables.steps, structs.STEP),
            structs.table(self.tables.stages, structs.STAGE),
            structs.table(self.tables.buffers, structs.BUFFER),
            constants,
            arena,
            output["offset"],
            len(self.order) * (1 + isinstance(self.program.head, JoinedHead)),
            self.program.head.classifier.width,
            self.program.embed.size,
        )

    def _begin(self) -> None:
        """The images as tokens, or as the first grid."""
        if isinstance(self.program.embed, Embed):
            self.order, self.stream = self.grids.patches(self.program.embed, self.program.operators)
        else:
            self.grids.pixels(self.program.embed, self.program.operators)

    def _between(self, operators: Sequence[OnTiles], attended: Rows | None, behind: Sequence[Operator]) -> Rows | None:
        """One step of the operators from an attention, a merge or a pyramid to the next; what an attention then reads.

        Args:
            behind: the operators from that next one on.
        """
        if not operators:
            return None
        step = TileStep() if isinstance(operators[0], Pyramid | Join) else TileStep.of(self.stream, attended)
        if attended is not None:
            self._read(step, attended, operators[0])
        for place, operator in enumerate(operators):
            behind_it = [*operators[place + 1 :], *behind]
            if isinstance(operator, Pyramid):
                self._pyramid(step, operator, behind_it)
            elif isinstance(operator, Join):
                self._join(step, operator, behind_it)
            elif isinstance(operator, AddValues):
                self._add_values(step)
            elif isinstance(operator, Renew):  # each row is read before it is written, in the same order
                step.add(self.stages.norm(operator.norm, self.order, Vector(self.order, None, structs.F32)), 0, 0)
            elif isinstance(operator, Grid):
                self.grids.cast(step, self.order, self.state.tokens, operator.prefix, behind_it)
            elif not isinstance(operator, NewStream | Keep):  # whoever gives one began it, or kept what it gave
                self._on_rows(step, operator, behind_it)
        rows = tile_rows(operators[0].convolutions) if isinstance(operators[0], Pyramid) else TILE_ROWS
        buffers = step.placed(self.tables, rows)
        self.tables.step(structs.ROWS, buffers, step.stages, rows=self.state.rows, tile=rows)
        return step.result

    def _on_rows(
        self, step: TileStep, operator: Norm | ReadStream | Factor | PostNorm | Inner, behind: Sequence[Operator]
    ) -> None:
        """The stage of a norm, a factor, or what acts on its outputs."""
        behind = readers(behind)
        if isinstance(operator, Factor) and operator.adds:
            return step.add(self.stages.factor(operator, step.given, self.order, None), step.at, 0)
        if isinstance(operator, PostNorm):
            stage = self.stages.norm(operator.norm, step.given.order, Vector(self.order, None, structs.F32))
            return step.add({**stage, "epilogue": structs.ADD}, step.at, 0)
        if isinstance(operator, QkNorm):
            step.add(self.stages.qk_norm(operator), step.at, step.at)
            if isinstance(behind[0], Rotary):
                return None
        if isinstance(behind[0], NewStream) and not step.starts:
            self._start(step, operator.width if isinstance(operator, Factor) else len(step.given.order), behind[1:])
        out = self._read_by(
            operator, behind, len(self.order if isinstance(operator, Norm | ReadStream) else step.given.order)
        )
        if isinstance(operator, Norm | ReadStream):
            stage, read = self.stages.norm(operator if isinstance(operator, Norm) else None, self.order, out), 0
        elif isinstance(operator, Factor):
            stage, read = self.stages.factor(operator, step.given, out.order, out), step.at
        else:
            stage, read = self.stages.inner(operator, step.given.order, out), step.at
        if isinstance(behind[0], NewStream):
            return step.add(stage, read, 0)
        if not isinstance(behind[0], OnTokens):
            return step.add(stage, read, step.gives(out, out))
        return self._kept(step, stage, read, out, behind[0])

    def _kept(self, step: TileStep, stage: Fields, read: int, out: Vector, attention: OnTokens) -> None:
        """Keep what a stage gives for an attention, which may take it in windows."""
        use, places = "attention's inputs", None
        if isinstance(attention, WindowedAttention):
            # Rows go to others than the tile's, in which the values of the attention before may still be needed.
            use, places = f"{use} in windows", np.argsort(attention.windows, axis=None)
            step.add(stage, read, step.gives(out, out))
            stage, read = self.stages.scatter(places, len(out.order) * structs.ITEM_BYTES[out.kind]), step.at
        buffer = self.tables.rows(use, out.row_bytes, self.state.rows)
        step.result = Rows(out, buffer, places)
        step.add(stage, read, step.gives(buffer, out))

    def _read_by(self, operator: Operator, behind: Sequence[Operator], channels: int) -> Vector:
        """The vector that an operator gives, which reads so many channels, as the next one reads it."""
        reader, factor = behind[0], operator if isinstance(operator, Factor) else None
        if factor is not None:
            channels = factor.width
        elif isinstance(operator, Glu):
            channels //= 2
        if isinstance(reader, Factor):
            if factor is not None:
                return inputs_of(reader, self.isa, kept_outputs(factor), self.isa.room_for(factor.weight.shape[1]))
            order = self.order if isinstance(operator, Norm | ReadStream) else np.arange(channels)
            return inputs_of(reader, self.isa, [order])
        if isinstance(reader, NewStream):
            return Vector(self.order, None, structs.F32)
        if isinstance(reader, Attention):
            return vector(qkv_order(factor, reader, first_factor(behind)))
        return Vector(np.arange(channels), None, structs.F32)

    def _add_values(self, step: TileStep) -> None:
        """The stage that adds an attention's values to the stream."""
        width = len(self.order)
        values, buffer = self.keys.vector.order[2 * width :] - 2 * width, from_column(self.keys.buffer, 4 * width)
        step.add(self.stages.add(values, self.order), step.gives(buffer, vector(values)), 0)

    def _read(self, step: TileStep, attended: Rows, reader: Operator) -> None:
        """The stages that bring what an attention or a convolution gave to the tile, as its reader takes it."""
        vector = attended.vector
        if attended.places is not None:
            row_bytes, read = len(vector.order) * structs.ITEM_BYTES[vector.kind], step.at
            step.add(self.stages.gather(attended.places[:, None], row_bytes), read, step.gives(vector, vector))
        self._cast(step, reader)

    def _cast(self, step: TileStep, reader: Operator) -> None:
        """The stage that makes floats what a factor reads."""
        if isinstance(reader, Factor) and step.given.kind == structs.F32:
            (order, read), out = (step.given.order, step.at), inputs_of(reader, self.isa, [step.given.order])
            step.add(self.stages.cast(order, out), read, step.gives(out, out))

    def _join(self, step: TileStep, join: Join, behind: Sequence[Operator]) -> None:
        """The stages that join rows of the stream, as what follows reads them; the step's stream is the new one."""
        old, order = self.stream, self.order
        start = next(place for place, operator in enumerate(behind) if isinstance(operator, NewStream))
        width = next(operator.width for operator in behind[start::-1] if isinstance(operator, Factor))
        step.buffers.append(old)
        self._start(step, width, behind[start + 1 :])
        joined = np.concatenate([order + place * len(order) for place in range(join.rows.shape[1])])
        tile, read = Vector(joined, None, structs.F32), step.gives(old, Vector(order, None, structs.F32))
        step.add(self.stages.gather(join.rows, 4 * len(order)), read, step.gives(tile, tile))
        self._cast(step, behind[0])

    def _start(self, step: TileStep, width: int, behind: Sequence[Operator]) -> None:
        """Let a stream of another width begin within a step, which has read the old one."""
        check_lanes(width)
        old, self.order = self.stream, stream_order(behind, width)
        self.stream = self.tables.rows("stream", Vector(self.order, None, structs.F32).row_bytes, self.state.tokens)
        if self.stream["offset"] == old["offset"]:
            self.stream = self.tables.rows("other stream", self.stream["row_bytes"], self.state.tokens)
        step.start(self.stream)

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

    def _attended(self, operator: OnTokens, qkv: Rows, before: State, behind: Sequence[Operator]) -> Rows | None:
        if isinstance(operator, Transposition):
            return self.attentions.transposed(operator, qkv, self.stream, self.order, before.tokens, behind)
        if isinstance(operator, ResponseNorm):
            return self.attentions.response_norm(operator, qkv, before.tokens)
        if isinstance(operator, Performer):
            self.order = np.arange(operator.w.shape[1])
            self.stream, attended = self.attentions.performer(operator, qkv, self.state.tokens, first_factor(behind))
            return attended
        self.keys = qkv
        sizes = self.sizes if before.sized else None
        return self.attentions.attention(operator, qkv, (before.tokens, self.state.tokens), sizes, behind)
