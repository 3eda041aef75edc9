"""Assembles a program for an instruction set: orders of channels, packed weights, buffers, steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import structs
from .grids import Grids, tile_rows
from .packing import LANES, InstructionSet
from .program import Attention, Branch, Embed, Factor, Grid, Merge, Norm, Operator, Performer, Places, Program, Pyramid
from .stages import Stages, TileStep, check_lanes
from .structs import LEAST_ROWS, Fields
from .vectors import Rows, Vector, inputs_of, kept_outputs, qkv_order, stream_order, vector

TILE_ROWS = 256
"""The rows of a tile. With fewer, all weights come from the third cache several times an image (ViT-B with 64 took a
third longer); with more, what lies between the stages leaves the second."""

OnRows = Norm | Factor | Grid | Pyramid


@dataclass(frozen=True, eq=False)
class Assembled:
    """A program in the form that the library runs.

    Args:
        arena_bytes: memory that one caller needs.
        logits: offset of an image's answers in it.
    """

    isa: InstructionSet
    steps: NDArray[Any]
    stages: NDArray[Any]
    buffers: NDArray[Any]
    constants: NDArray[np.uint8]
    arena_bytes: int
    logits: int
    classes: int
    size: int


def assemble(program: Program, isa: InstructionSet) -> Assembled:
    """Assemble a program.

    Raises:
        ValueError: what it computes does not fit the kernels; one line that says why.
    """
    return _Assembly(program, isa).run()


class _Assembly:
    """What has been assembled so far.

    Args:
        tokens, width, order, stream: of the stream: rows of an image, channels, their order, and where it lies.
        sizes: of the tokens, once some are merged.
    """

    tokens: int
    width: int
    order: Places
    stream: Fields
    sizes: Fields | None = None

    def __init__(self, program: Program, isa: InstructionSet) -> None:
        self.program, self.isa = program, isa
        self.tables = structs.Tables()
        self.stages = Stages(self.tables.constants, isa)
        self.grids = Grids(self.tables, self.stages)

    def run(self) -> Assembled:
        self._begin()
        between, given, qkv = list[OnRows](), None, None
        for place, operator in enumerate(self.program.operators):
            behind = self.program.operators[place + 1 :]
            if isinstance(operator, Pyramid):
                self._between(between, given, [operator, *behind])
                given, between = None, [operator]
            elif isinstance(operator, OnRows):
                between.append(operator)
            elif isinstance(operator, Branch):
                if between:
                    self._between(between, given, [operator, *behind])
                    given, between = None, []
                self.grids.branch(operator, self.stream, self.order)
            elif isinstance(operator, Attention | Performer):
                qkv = self._between(between, given, [operator, *behind])
                given, between = self._attended(operator, qkv, behind), []
            else:
                self._between(between, given, [operator, *behind])
                given, between = None, []
                self._merge(operator, qkv)
        self._between(between, given, [])
        logits = self._head()
        return Assembled(
            self.isa,
            structs.table(self.tables.steps, structs.STEP),
            structs.table(self.tables.stages, structs.STAGE),
            structs.table(self.tables.buffers, structs.BUFFER),
            self.tables.constants.memory(),
            self.tables.arena.size,
            logits["offset"],
            self.program.head.classifier.width,
            self.program.embed.size,
        )

    def _begin(self) -> None:
        """The images as tokens, or as the first grid."""
        if isinstance(self.program.embed, Embed):
            self._embed(self.program.embed)
        else:
            self.grids.pixels(self.program.embed, self.program.operators)

    def _embed(self, embed: Embed) -> None:
        self.tokens, self.width = embed.start.shape
        check_lanes(self.width)
        self.order = stream_order(self.program.operators, self.width)
        self.stream = self.tables.rows("stream", 4 * self.width, self.tokens)
        width, channels, patch, _ = embed.weight.shape
        pixels, patches = vector(np.arange(channels * patch * patch)), (embed.size // patch) ** 2
        start = embed.start[:, self.order].astype(np.float32)
        rows = self.tables.rows("patches", pixels.row_bytes, patches)
        step = {"side": embed.size, "patch": patch, "start": self.stages.floats(start), "start_bytes": start.nbytes}
        self.tables.step(structs.PATCHES, [rows, self.stream], **step)
        places = np.arange(max(width, len(pixels.order)))
        inputs, outputs = places[None, : len(pixels.order)], places[None, :width]
        factor = Factor(embed.weight.reshape(1, width, -1), inputs, outputs, width, embed.bias, adds=True)
        behind = {**self.stream, "offset": self.stream["offset"] + (self.tokens - patches) * self.stream["row_bytes"]}
        stage = {**self.stages.factor(factor, pixels, self.order, None), "from": 0, "to": 1}
        self.tables.step(structs.ROWS, [rows, behind], [stage], rows=patches, tile=TILE_ROWS)

    def _between(self, operators: Sequence[OnRows], given: Rows | None, behind: Sequence[Operator]) -> Rows | None:
        """One step of the operators from an attention, a merge or a pyramid to the next; what an attention then reads.

        Args:
            behind: the operators from that next one on.
        """
        if not operators:
            return None
        step = TileStep() if isinstance(operators[0], Pyramid) else TileStep.of(self.stream, given)
        for place, operator in enumerate(operators):
            rest = [*operators[place + 1 :], *behind]
            if isinstance(operator, Pyramid):
                self._pyramid(step, operator, rest)
            elif isinstance(operator, Grid):
                self.grids.cast(step, self.order, self.tokens, operator.prefix, rest)
            else:
                self._on_rows(step, operator, rest)
        rows = tile_rows(operators[0].convolutions) if isinstance(operators[0], Pyramid) else TILE_ROWS
        buffers = step.placed(self.tables, rows)
        self.tables.step(structs.ROWS, buffers, step.stages, rows=self.tokens, tile=rows)
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
        step.result = Rows(out, self.tables.rows("attention's inputs", out.row_bytes, self.tokens))
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
        self.tokens = pyramid.convolutions[0].across ** 2
        self.width = sum(each.factor.width for each in pyramid.convolutions)
        check_lanes(self.width)
        self.order = stream_order(behind, self.width)
        out = Vector(self.order, None, structs.F32)
        if isinstance(next((each for each in behind if not isinstance(each, Norm | Factor)), None), Performer):
            step.buffers.append(out)
        else:
            self.stream = self.tables.rows("stream", out.row_bytes, self.tokens)
            step.buffers.append(self.stream)
        self.grids.pyramid(step, pyramid, self.order, out)

    def _attended(self, operator: Attention | Performer, given: Rows | None, behind: Sequence[Operator]) -> Rows:
        if given is None:
            raise ValueError("an attention behind no factor that gives its queries, keys and values")
        if isinstance(operator, Performer):
            return self._performer(operator, given, _factor(behind))
        return self._attention(operator, given, _factor(behind))

    def _attention(self, attention: Attention, given: Rows, reader: Factor) -> Rows:
        if attention.head_dim % LANES:
            raise ValueError(f"heads of {attention.head_dim} channels: the kernels take multiples of {LANES}")
        inner, queries = attention.heads * attention.head_dim, 1 if attention.first else self.tokens
        out = vector(given.vector.order[2 * inner :] - 2 * inner, reader.quantiser)
        to = self.tables.rows(f"attention's outputs {out.kind}", out.row_bytes, queries)
        values: dict[str, Any] = {"to_type": out.kind, "queries": queries}
        if out.quantiser is not None:
            values["scale"], values["bias"] = self.stages.to_type(out.order, out)
        size = structs.attention_bytes(self.tokens, attention.head_dim)
        self.tables.step(
            structs.ATTENTION,
            [given.buffer, to, *([] if self.sizes is None else [self.sizes])],
            rows=self.tokens,
            heads=attention.heads,
            width=attention.head_dim,
            weighted=self.sizes is not None,
            scratch=self.tables.place(("scratch", size), size),
            **values,
        )
        if attention.first:  # the stream is then its first row
            self.tokens = 1
        return Rows(out, to)

    def _performer(self, performer: Performer, given: Rows, reader: Factor) -> Rows:
        """A performer; its values are the stream from now on."""
        features, self.width = performer.w.shape
        check_lanes(self.width, "a performer of ")
        self.order = np.arange(self.width)
        values = Vector(self.order, None, structs.F32)
        self.stream = self.tables.rows("stream", values.row_bytes, self.tokens)
        out = inputs_of(reader, self.isa, [self.order])
        to = self.tables.rows(f"attention's outputs {out.kind}", out.row_bytes, self.tokens)
        padded = -(-features // LANES) * LANES
        w, gain = np.zeros((self.width, padded)), np.zeros((1, padded))
        w[:, :features], gain[:, :features] = performer.w.T * np.log2(np.e), features**-0.5
        scale, bias = self.stages.to_type(self.order, out)
        size = structs.performer_bytes(self.width, padded)
        self.tables.step(
            structs.PERFORMER,
            [given.buffer, self.stream, to],
            rows=self.tokens,
            width=self.width,
            features=padded,
            epsilon=performer.eps,
            to_type=out.kind,
            start=self.stages.floats(np.concatenate([w, gain])),
            scale=scale,
            bias=bias,
            scratch=self.tables.place(("performer", size), size),
            **self.stages.columns(self.order, out),
        )
        return Rows(out, to)

    def _merge(self, merge: Merge, qkv: Rows | None) -> None:
        """Merge tokens of the stream into a new one, by the keys of the attention before."""
        assert qkv is not None
        before, sizes, rows = self.stream, self.sizes, self.tokens
        self.tokens -= merge.count
        self.stream = self.tables.rows("stream", 4 * self.width, self.tokens)
        self.sizes = self.tables.rows("sizes", 4, self.tokens)
        patches = rows - merge.prefix
        if not 0 < merge.count <= (patches - 1) // 2:
            raise ValueError(f"{merge.count} of {patches} tokens are to be merged: at most {(patches - 1) // 2} can be")
        size = structs.merge_bytes(rows, merge.head_dim)
        self.tables.step(
            structs.MERGE,
            [qkv.buffer, before, self.stream, self.sizes, sizes or self.sizes],
            rows=rows,
            heads=merge.heads,
            width=merge.head_dim,
            prefix=merge.prefix,
            merged=merge.count,
            channels=self.width,
            protect=merge.protect,
            weighted=sizes is not None,
            scratch=self.tables.place(("merge", size), size),
        )

    def _head(self) -> Fields:
        head = self.program.head
        normed = inputs_of(head.classifier, self.isa, [self.order])
        answers = Vector(np.arange(head.classifier.width), None, structs.F32)
        logits = self.tables.rows("logits", answers.row_bytes, 1)
        first = self._mean(head.mean_from)
        norm = self.stages.cast(self.order, normed) if head.norm is None else None
        norm = norm or self.stages.norm(head.norm, self.order, normed)  # type: ignore[arg-type]
        classified = self.stages.factor(head.classifier, normed, answers.order, answers)
        tile = self.tables.tile(LEAST_ROWS, 0, normed.kind, normed.row_bytes)
        stages = [{**norm, "from": 0, "to": 1}, {**classified, "from": 1, "to": 2}]
        self.tables.step(structs.ROWS, [first, tile, logits], stages, rows=1, tile=LEAST_ROWS)
        return logits

    def _mean(self, first: int | None) -> Fields:
        """What is classified: the first token, or the mean of those from one on."""
        if first is None:
            return self.stream
        behind = {**self.stream, "offset": self.stream["offset"] + first * self.stream["row_bytes"]}
        mean = self.tables.rows("mean", 4 * self.width, 1)
        self.tables.step(structs.MEAN, [behind, mean], rows=self.tokens - first, channels=self.width)
        return mean


def _factor(operators: Sequence[Operator]) -> Factor:
    return next(each for each in operators if isinstance(each, Factor))
