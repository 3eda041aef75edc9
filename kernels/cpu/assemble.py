"""Assembles a program for an instruction set: orders of channels, packed weights, buffers, steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import structs
from .layout import groups_of, positions
from .packing import LANES, InstructionSet, pack
from .program import Attention, Factor, Merge, Norm, Program
from .vectors import Vector, inputs_of, kept_outputs, qkv_order, stream_order, vector

LEAST_ROWS, TILE_ROWS = 32, 256
"""What a kernel takes at least, and the rows of a tile. With fewer, all weights come from the third cache several times
an image (ViT-B with 64 took a third longer); with more, what lies between the stages leaves the second."""

Fields = Mapping[str, Any]
"""Some of a structure's fields."""


@dataclass(frozen=True, eq=False)
class Assembled:
    """A program in the form that the library runs.

    Args:
        arena_bytes: memory that one caller needs.
        logits, logits_bytes: offset of the answers in it, and from one image's to the next's.
    """

    isa: InstructionSet
    steps: NDArray[Any]
    stages: NDArray[Any]
    buffers: NDArray[Any]
    constants: NDArray[np.uint8]
    arena_bytes: int
    logits: int
    logits_bytes: int
    classes: int
    size: int
    images: int


@dataclass(frozen=True, eq=False)
class _Rows:
    """A vector for each token of all images, and its buffer."""

    vector: Vector
    buffer: Fields


def assemble(program: Program, isa: InstructionSet, images: int) -> Assembled:
    """Assemble a program for so many images a call at most.

    Raises:
        ValueError: what it computes does not fit the kernels; one line that says why.
    """
    return _Assembly(program, isa, images).run()


class _Assembly:
    def __init__(self, program: Program, isa: InstructionSet, images: int) -> None:
        self.program, self.isa, self.images = program, isa, images
        self.constants, self.arena = structs.Constants(), structs.Arena()
        self.steps, self.stages, self.buffers = list[Fields](), list[Fields](), list[Fields]()
        self.tokens, self.width = program.embed.start.shape
        if self.width % LANES:
            raise ValueError(f"{self.width} channels: the kernels take multiples of {LANES}")
        self.order = stream_order(program.operators, self.width)
        self._places: dict[tuple[Any, ...], int] = {}
        self.stream = self._for_tokens("stream", 4 * self.width)
        self.sizes: Fields | None = None  # of the tokens, once some are merged

    def run(self) -> Assembled:
        self._embed()
        between, given, qkv = list[Norm | Factor](), None, None
        for place, operator in enumerate(self.program.operators):
            if isinstance(operator, Norm | Factor):
                between.append(operator)
            elif isinstance(operator, Attention):
                reader = self.program.operators[place + 1]
                assert isinstance(reader, Factor)
                qkv = self._between(between, given, operator, reader)
                given, between = self._attention(operator, qkv, reader), []
            else:
                self._between(between, given)
                given, between = None, []
                self._merge(operator, qkv)
        self._between(between, given)
        logits = self._head()
        return Assembled(
            self.isa,
            structs.table(self.steps, structs.STEP),
            structs.table(self.stages, structs.STAGE),
            structs.table(self.buffers, structs.BUFFER),
            self.constants.memory(),
            self.arena.size,
            logits["offset"],
            logits["row_bytes"],
            self.program.head.classifier.width,
            self.program.embed.size,
            self.images,
        )

    def _place(self, key: tuple[Any, ...], size: int) -> int:
        """Offset of memory in the arena; what has one key is never needed at once, and is one."""
        if key not in self._places:
            self._places[key] = self.arena.add(size)
        return self._places[key]

    def _for_tokens(self, use: str, row_bytes: int, rows: int = 0) -> Fields:
        """A buffer with a row for each token of all images, or with so many rows of each."""
        rows = rows or self.tokens
        offset = self._place((use, row_bytes, rows), (rows * self.images + LEAST_ROWS) * row_bytes)
        return {"offset": offset, "image_bytes": rows * row_bytes, "row_bytes": row_bytes, "in_arena": 1}

    def _step(self, kind: int, buffers: Sequence[Fields], stages: Sequence[Fields] = (), **values: Any) -> None:
        places = {"first_buffer": len(self.buffers), "first_stage": len(self.stages), "stages": len(stages)}
        self.steps.append({"kind": kind, **places, **values})
        self.buffers += buffers
        self.stages += stages

    def _floats(self, values: NDArray[Any]) -> int:
        return self.constants.add(values.astype(np.float32))

    def _embed(self) -> None:
        embed = self.program.embed
        width, channels, patch, _ = embed.weight.shape
        pixels, patches = vector(np.arange(channels * patch * patch)), (embed.size // patch) ** 2
        start = embed.start[:, self.order].astype(np.float32)
        rows = self._for_tokens("patches", pixels.row_bytes, patches)
        step = {"side": embed.size, "patch": patch, "start": self.constants.add(start), "start_bytes": start.nbytes}
        self._step(structs.PATCHES, [rows, self.stream], **step)
        places = np.arange(max(width, len(pixels.order)))
        flat, inputs, outputs = (
            embed.weight.reshape(1, width, -1),
            places[None, : len(pixels.order)],
            places[None, :width],
        )
        factor = Factor(flat, inputs, outputs, width, embed.bias, adds=True)
        behind = {**self.stream, "offset": self.stream["offset"] + (self.tokens - patches) * self.stream["row_bytes"]}
        stage = {**self._factor(factor, pixels, None), "from": 0, "to": 1}
        self._step(structs.ROWS, [rows, behind], [stage], rows=patches, tile=TILE_ROWS)

    def _between(
        self,
        operators: Sequence[Norm | Factor],
        given: _Rows | None,
        attention: Attention | None = None,
        reader: Factor | None = None,
    ) -> _Rows | None:
        """One step of the operators from an attention or a merge to the next; returns what an attention then reads."""
        if not operators:
            return None
        buffers: list[Fields | Vector] = [self.stream, *([] if given is None else [given.buffer])]
        stages, current, at, result = list[Fields](), None if given is None else given.vector, 1, None
        for operator, following in zip(operators, [*operators[1:], None], strict=True):
            if isinstance(operator, Factor) and operator.adds:
                assert current is not None
                stages.append({**self._factor(operator, current, None), "from": at, "to": 0})
                continue
            if isinstance(following, Factor):
                written = [self.order] if isinstance(operator, Norm) else kept_outputs(operator)
                out = inputs_of(following, written)
                buffers.append(out)
            else:
                assert isinstance(operator, Factor) and attention is not None and reader is not None  # noqa: PT018
                out = vector(qkv_order(operator, attention, reader))
                result = _Rows(out, self._for_tokens("attention's inputs", out.row_bytes))
                buffers.append(result.buffer)
            if isinstance(operator, Norm):
                stage = {**self._norm(operator, out), "from": 0}
            else:
                assert current is not None
                stage = {**self._factor(operator, current, out), "from": at}
            at, current = len(buffers) - 1, out
            stages.append({**stage, "to": at})
        self._rows_step(buffers, stages)
        return result

    def _rows_step(self, buffers: Sequence[Fields | Vector], stages: Sequence[Fields]) -> None:
        """A step over all tokens; vectors among the buffers hold a tile alone."""
        tiled = [self._tile(TILE_ROWS, i, each) if isinstance(each, Vector) else each for i, each in enumerate(buffers)]
        self._step(structs.ROWS, tiled, stages, rows=self.tokens, tile=TILE_ROWS, images_are_rows=1)

    def _tile(self, rows: int, place: int, each: Vector) -> Fields:
        """A buffer for the rows of a tile; steps share them."""
        size = (rows + LEAST_ROWS) * each.row_bytes
        # Of one kind: what is read behind a row has to be a number.
        return {"offset": self._place(("tile", place, each.kind, size), size), "row_bytes": each.row_bytes}

    def _norm(self, norm: Norm, out: Vector) -> Fields:
        place = positions(out.order, self.width)[self.order]
        weight, bias = norm.weight, norm.bias
        if out.quantiser is not None:
            weight, bias = weight / out.quantiser.scale, bias / out.quantiser.scale + out.quantiser.zero
        group, places = groups_of(place)
        return {
            "action": structs.NORM,
            "type": out.kind,
            "inputs": self.width,
            "group": group,
            "eps": norm.eps,
            "scale": self._floats(weight[self.order]),
            "bias": self._floats(bias[self.order]),
            "places": self.constants.add(np.where(places < 0, len(out.order), places).astype(np.int32)),
        }

    def _factor(self, factor: Factor, given: Vector, out: Vector | None) -> Fields:
        """The stage of a factor; `out` is None where it adds to the stream."""
        order, quantiser, to_type = self.order, None, structs.F32
        if out is not None:
            order, quantiser, to_type = out.order, out.quantiser, out.kind
        # What is added for a dropped output is 0, and may be added anywhere.
        dropped = 0 if factor.adds else len(order)
        packed = pack(factor, given.order, positions(order, factor.width), dropped, quantiser, self.isa)
        stage = {
            "action": structs.FACTOR,
            "type": given.kind,
            "blocks": factor.weight.shape[0],
            "inputs": factor.weight.shape[2],
            "outputs": packed.outputs,
            "nr": packed.nr,
            "epilogue": structs.ADD if factor.adds else structs.GELU if factor.gelu else structs.STORE,
            "to_type": to_type,
            "group": packed.group,
        }
        arrays: dict[str, NDArray[Any]] = {"weights": packed.panels, "scale": packed.scale, "bias": packed.bias}
        if packed.scale2 is not None and packed.bias2 is not None:
            arrays |= {"scale2": packed.scale2, "bias2": packed.bias2}
        arrays |= {"places": packed.places}
        return stage | {name: self.constants.add(values) for name, values in arrays.items()}

    def _attention(self, attention: Attention, given: _Rows | None, reader: Factor) -> _Rows:
        if given is None:
            raise ValueError("an attention behind no factor that gives its queries, keys and values")
        if attention.head_dim % LANES:
            raise ValueError(f"heads of {attention.head_dim} channels: the kernels take multiples of {LANES}")
        inner, queries = attention.heads * attention.head_dim, 1 if attention.first else self.tokens
        out = vector(given.vector.order[2 * inner :] - 2 * inner, reader.quantiser)
        to = self._for_tokens(f"attention's outputs {out.kind}", out.row_bytes, queries)
        values: dict[str, Any] = {"to_type": out.kind, "queries": queries}
        if out.quantiser is not None:
            values["scale"] = self._floats(1 / out.quantiser.scale[out.order])
            values["bias"] = self._floats(out.quantiser.zero[out.order])
        buffers = [given.buffer, to, *([] if self.sizes is None else [self.sizes])]
        scratch = self._place(("scratch",), _scratch_bytes(len(self.program.embed.start), attention.head_dim))
        self._step(
            structs.ATTENTION,
            buffers,
            rows=self.tokens,
            heads=attention.heads,
            width=attention.head_dim,
            weighted=self.sizes is not None,
            scratch=scratch,
            **values,
        )
        if attention.first:  # the stream is then the first row of each image
            self.tokens, self.stream = 1, {**self.stream, "row_bytes": self.stream["image_bytes"]}
        return _Rows(out, to)

    def _merge(self, merge: Merge, qkv: _Rows | None) -> None:
        """Merge tokens of the stream into a new one, by the keys of the attention before."""
        assert qkv is not None
        before, sizes, rows = self.stream, self.sizes, self.tokens
        self.tokens -= merge.count
        self.stream = self._for_tokens("stream", 4 * self.width)
        self.sizes = self._for_tokens("sizes", 4)
        patches = rows - merge.prefix
        if not 0 < merge.count <= (patches - 1) // 2:
            raise ValueError(f"{merge.count} of {patches} tokens are to be merged: at most {(patches - 1) // 2} can be")
        self._step(
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
            scratch=self._place(("merge",), _merge_bytes(len(self.program.embed.start), merge.head_dim)),
        )

    def _head(self) -> Fields:
        norm, classifier = self.program.head.norm, self.program.head.classifier
        first = {**self.stream, "row_bytes": self.stream["image_bytes"]}
        normed = inputs_of(classifier, [self.order])
        answers = Vector(np.arange(classifier.width), None, structs.F32)
        logits = self._for_tokens("logits", answers.row_bytes, 1)
        stages = [
            {**self._norm(norm, normed), "from": 0, "to": 1},
            {**self._factor(classifier, normed, answers), "from": 1, "to": 2},
        ]
        tile = self._tile(LEAST_ROWS, 0, normed)
        self._step(structs.ROWS, [first, tile, logits], stages, rows=1, tile=LEAST_ROWS, images_are_rows=1)
        return logits


def _scratch_bytes(tokens: int, width: int) -> int:
    """What one head needs in the kernel: transposed values, queries, scores, probabilities, sums."""
    keys, padded, panel = -(-tokens // 32) * 32, -(-width // 32) * 32, 32
    return 4 * (padded * keys + 2 * panel * padded + 2 * panel * keys + panel * padded) + 16 * structs.SLACK


def _merge_bytes(tokens: int, width: int) -> int:
    """What a merge needs in the kernel: keys of both sets, and some numbers for each token."""
    return 4 * (tokens + 2 * LANES) * (width + 16)
