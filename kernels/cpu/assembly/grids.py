"""Assembles patches, and convolutions: their taps are gathered, tile by tile, and a factor multiplies them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import structs
from ..instruction_sets import LANES
from ..program import Attention, Branch, Convolution, Embed, Factor, NormedEmbed, Operator, Pixels, Pyramid, Quantiser
from ..row_operators import Floats, Norm, Places
from ..structs import Fields, Tables, from_row
from .stages import StageBuilder, check_lanes, grouped_order
from .tile_step import TileStep
from .vectors import Rows, Vector, stream_order, vector

TILE_ROWS = 256
"""The rows of a tile. With fewer, all weights come from the third cache several times an image (ViT-B with 64 took a
third longer); with more, what lies between the stages leaves the second."""

PLACES = 2
"""What `csrc/grouped.h` computes at once of a grid."""

TILE_BYTES = 131072
"""What a tile of taps may be, so that it stays in the second cache beside the weights."""

TILE_STEP = 32


class Grids:
    """Makes the steps and stages of patches and convolutions.

    Args:
        current: the grid that the next convolutions read; None before there is one, and where they read the stream.
        in_lanes: whether a lane of a vector computes a group of them; else the grid's channels lie in their own order.
    """

    def __init__(self, tables: Tables, stages: StageBuilder) -> None:
        self.tables, self.stages = tables, stages
        self.current: Rows | None = None
        self.in_lanes = False
        self._casts = 0

    def pixels(self, pixels: Pixels, behind: Sequence[Operator]) -> None:
        """The step that makes the images the grid."""
        rows = self._rows("pixels", vector(np.arange(3), _quantiser(_first(behind), 3)), pixels.size**2)
        scale, bias = self.stages.to_type(np.arange(3), rows.vector)
        kind = rows.vector.kind
        takes = [(pixels.size**2, 3 * structs.ITEM_BYTES[kind])]
        values: dict[str, Any] = {"side": pixels.size, "to_type": kind, "scale": scale, "bias": bias}
        self.tables.step(structs.PIXELS, [rows.buffer], takes=takes, **values)
        self.current = rows

    def patches(self, embed: Embed, operators: Sequence[Operator]) -> tuple[Places, Fields]:
        """The steps that make the images tokens: the order of the stream's channels, and where it lies."""
        tokens, width = embed.start.shape
        check_lanes(width)
        order = stream_order(operators, width)
        stream = self.tables.rows("stream", 4 * width, tokens)
        _, channels, patch, _ = embed.weight.shape
        pixels, patches = vector(np.arange(channels * patch * patch)), (embed.size // patch) ** 2
        rows = self.tables.rows("patches", pixels.row_bytes, patches)
        takes = [(patches, 6 * patch**2), (tokens, 4 * width)]
        values = {"side": embed.size, "patch": patch, **self._start(embed.start[:, order])}
        self.tables.step(structs.PATCHES, [rows, stream], takes=takes, **values)
        places = np.arange(max(width, len(pixels.order)))
        inputs, outputs = places[None, : len(pixels.order)], places[None, :width]
        normed = embed.norm if isinstance(embed, NormedEmbed) else None
        factor = Factor(embed.weight.reshape(1, width, -1), inputs, outputs, width, embed.bias, adds=normed is None)
        step = TileStep.of(from_row(stream, tokens - patches), Rows(pixels, rows))
        if normed is not None:
            product = Vector(np.arange(width), None, structs.F32)
            step.add(self.stages.factor(factor, pixels, product.order, product), step.at, step.gives(product, product))
            norm = self.stages.norm(normed, product.order, Vector(order, None, structs.F32))
            step.add({**norm, "epilogue": structs.ADD}, step.at, 0)
        else:
            step.add(self.stages.factor(factor, pixels, order, None), step.at, 0)
        buffers = step.placed(self.tables, TILE_ROWS)
        self.tables.step(structs.ROWS, buffers, step.stages, rows=patches, tile=TILE_ROWS)
        return order, stream

    def start(self, start: Floats, behind: Sequence[Operator]) -> tuple[Places, Fields]:
        """The step that starts the stream with values that no image changes: `patches` of an image without any."""
        tokens, width = start.shape
        check_lanes(width)
        order, stream = stream_order(behind, width), self.tables.rows("stream", 4 * width, tokens)
        values = {"side": 0, "patch": LANES, **self._start(start[:, order])}
        self.tables.step(structs.PATCHES, [stream, stream], takes=[(tokens, 4 * width)] * 2, **values)
        return order, stream

    def _start(self, start: Floats) -> dict[str, Any]:
        return {"start": self.stages.floats(start), "start_bytes": 4 * start.size}

    def cast(self, step: TileStep, order: Places, tokens: int, prefix: int, behind: Sequence[Operator]) -> None:
        """Make the stream, whose columns are in that order, the grid, unless a branch reads the stream itself."""
        self.current, self.in_lanes = None, _reads_the_stream(behind)
        if self.in_lanes:
            return
        self.in_lanes = _in_lanes(behind)
        self._casts += 1
        first = _first(behind)
        channels = grouped_order(first) if self.in_lanes else np.arange(len(order))
        kept = vector(channels, _quantiser(first, len(order)))
        rows = self._rows(f"grid {self._casts % 2}", kept, tokens)
        self.current = Rows(rows.vector, from_row(rows.buffer, prefix))
        step.buffers.append(rows.buffer)
        step.add(self.stages.cast(order, rows.vector), 0, len(step.buffers) - 1)

    def pyramid(self, step: TileStep, pyramid: Pyramid, order: Places, out: Vector) -> None:
        """The stages of a pyramid, which write to the first of a step's buffers, whose columns are in that order."""
        assert self.current is not None
        grid, first = len(step.buffers), 0
        step.buffers.append(self.current.buffer)
        for convolution in pyramid.convolutions:
            self._require_own(convolution, self.current)
            taps = len(step.buffers)
            step.buffers.append(taps_of(convolution))
            step.add(self.stages.im2col(convolution, self.current.vector), grid, taps)
            step.add(self.stages.factor(convolution.factor, taps_of(convolution), order, out, first), taps, 0)
            first += convolution.factor.width

    def branch(self, branch: Branch, stream: Fields, order: Places) -> None:
        """The steps of a branch, which adds to the stream, whose columns are in that order."""
        behind = from_row(stream, branch.prefix)
        if self.in_lanes or self.current is None:
            return self._by_groups(branch, behind, order)
        grid = self.current
        self._require_own(branch.convolutions[0], grid)
        for place, convolution in enumerate(branch.convolutions[:-1]):
            channels = np.arange(convolution.factor.width)
            kept = vector(channels, _quantiser(branch.convolutions[place + 1], len(channels)))
            rows = self._rows(f"branch {place % 2}", kept, convolution.across**2, dropping=_drops(convolution))
            self._convolved(convolution, grid, rows.buffer, channels, kept)
            grid = rows
        return self._convolved(branch.convolutions[-1], grid, behind, order, None)

    def _require_own(self, convolution: Convolution, grid: Rows) -> None:
        """Refuse a convolution whose grid was written in another one's 8 bits."""
        expected, written = _quantiser(convolution, len(grid.vector.order)), grid.vector.quantiser
        if expected and written and not np.array_equal([expected.scale, expected.zero], [written.scale, written.zero]):
            raise ValueError(f"{convolution.factor.name}: its activations are not those of others that read its grid")

    def _convolved(self, convolution: Convolution, grid: Rows, to: Fields, order: Places, out: Vector | None) -> None:
        """The step of one convolution; `out` is None where it adds to the stream."""
        step, taps, tile = TileStep(), taps_of(convolution), tile_rows([convolution])
        step.buffers += [grid.buffer, taps, to]
        step.add(self.stages.im2col(convolution, grid.vector), 0, 1)
        step.add(self.stages.factor(convolution.factor, taps, order, out), 1, 2)
        rows = convolution.across**2
        self.tables.step(structs.ROWS, step.placed(self.tables, tile), step.stages, rows=rows, tile=tile)

    def _by_groups(self, branch: Branch, stream: Fields, order: Places) -> None:
        """The step of a branch of which a lane of a vector computes a group; in float32 it reads the stream itself."""
        readers = [*branch.convolutions[1:], None]
        outs = [None if reader is None else _quantiser(reader, reader.channels) for reader in readers]
        stages = [self.stages.grouped(conv, order, out) for conv, out in zip(branch.convolutions, outs, strict=True)]
        first = branch.convolutions[0]
        edge = max(convolution.kernel for convolution in branch.convolutions) // 2
        channels = max(number for stage in stages for number in (stage["inputs"], stage["outputs"]))
        places = (first.side + 2 * edge) * (first.side + 2 * edge + PLACES)
        size = 4 * LANES * (2 * places + PLACES) * channels
        buffers, takes = [stream], [(first.side**2, stages[-1]["writes"])]
        if self.current is not None:
            buffers.append(self.current.buffer)
            takes.append((first.side**2, stages[0]["inputs"] * 4 * LANES * -(-first.groups // LANES)))
        self.tables.step(
            structs.GROUPED,
            buffers,
            stages,
            takes,
            side=first.side,
            prefix=edge,
            channels=channels,
            heads=-(-first.groups // LANES),
            features=first.groups,
            scratch=self.tables.place(("grouped", size), size),
        )

    def _rows(self, use: str, kept: Vector, rows: int, *, dropping: bool = False) -> Rows:
        """Rows of a grid, close together where no output is dropped behind them."""
        item = structs.ITEM_BYTES[kept.kind]
        return Rows(kept, self.tables.rows(use, kept.row_bytes if dropping else len(kept.order) * item, rows))


def tile_rows(convolutions: Sequence[Convolution]) -> int:
    """Return how many rows of taps a tile holds."""
    most = max(taps_of(convolution).row_bytes for convolution in convolutions)
    rows = max(convolution.across**2 for convolution in convolutions)
    return max(1, min(TILE_BYTES // most, rows + TILE_STEP - 1) // TILE_STEP) * TILE_STEP


def taps_of(convolution: Convolution) -> Vector:
    """Return the vector of a convolution's taps as they are gathered: by block, in their own order."""
    return vector(np.sort(convolution.factor.inputs, axis=1).reshape(-1), convolution.factor.quantiser)


def _first(operators: Sequence[Operator]) -> Convolution:
    """The convolution that reads a grid first."""
    return next(operator for operator in operators if isinstance(operator, Branch | Pyramid)).convolutions[0]


def _reads_the_stream(behind: Sequence[Operator]) -> bool:
    """Whether the next convolutions are a branch by groups, before which nothing changes the stream."""
    for operator in behind:
        if not isinstance(operator, Norm | Attention) and not (isinstance(operator, Factor) and not operator.adds):
            if not isinstance(operator, Branch):
                return False
            return operator.by_groups and operator.convolutions[0].factor.quantiser is None
    return False


def _in_lanes(behind: Sequence[Operator]) -> bool:
    """Whether the next convolutions are a branch by groups in 8 bits."""
    branch = next(operator for operator in behind if isinstance(operator, Branch | Pyramid))
    return isinstance(branch, Branch) and branch.by_groups and branch.convolutions[0].factor.quantiser is not None


def _quantiser(convolution: Convolution, channels: int) -> Quantiser | None:
    """How a convolution's grid becomes 8 bits: as any one of its taps."""
    taps = convolution.factor.quantiser
    return None if taps is None else Quantiser(taps.scale[:channels], taps.zero[:channels])


def _drops(convolution: Convolution) -> bool:
    return bool(convolution.factor.weight.shape[1] % 32)
