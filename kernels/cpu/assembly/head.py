"""Steps of a head: a mean, a norm, the classifier."""

from typing import NamedTuple

import numpy as np

from .. import structs
from ..program import Head, JoinedHead
from ..row_operators import Places
from ..structs import LEAST_ROWS, Fields, Tables, from_row
from .stages import StageBuilder
from .vectors import Vector, inputs_of


class StreamRows(NamedTuple):
    """Rows of a stream.

    Args:
        order: of the channels.
    """

    buffer: Fields
    order: Places


def add_head(tables: Tables, stages: StageBuilder, head: Head, tokens: int, stream: StreamRows) -> Fields:
    """Add the steps of a head of so many tokens.

    Return the buffer of the outputs: what the classifier reads, then the logits.
    """
    classified, order = _classified(tables, stages, head, tokens, stream)
    normed, width = inputs_of(head.classifier, stages.isa, [order]), len(order)
    embedding, answers = (Vector(np.arange(size), None, structs.F32) for size in (width, head.classifier.width))
    output = tables.rows("output", 4 * width + answers.row_bytes, 1)
    logits = {**output, "offset": output["offset"] + 4 * width}
    tile = tables.tile(LEAST_ROWS, 0, normed.kind, normed.row_bytes)
    made = [
        {**stages.norm(head.norm, order, embedding), "from": 0, "to": 2},
        {**stages.norm(head.norm, order, normed), "from": 0, "to": 1},
        {**stages.factor(head.classifier, normed, answers.order, answers), "from": 1, "to": 3},
    ]
    tables.step(structs.ROWS, [classified, tile, output, logits], made, rows=1, tile=LEAST_ROWS)
    return output


def _classified(tables: Tables, stages: StageBuilder, head: Head, tokens: int, stream: StreamRows) -> StreamRows:
    """What is classified, and the order of its channels: the first token, a mean of tokens, or both."""
    if (first := head.mean_from) is None:
        return stream
    (buffer, order), width = stream, len(stream.order)
    joined, rows = isinstance(head, JoinedHead), getattr(head, "count", None) or tokens - first
    row = tables.rows("mean", 4 * width * (1 + joined), 1)
    mean = {**row, "offset": row["offset"] + 4 * width * joined}
    takes = [(rows, 4 * width), (1, 4 * width)]
    tables.step(structs.MEAN, [from_row(buffer, first), mean], takes=takes, rows=rows, channels=width)
    if not joined:
        return StreamRows(row, order)
    stage = {**stages.cast(order, Vector(order, None, structs.F32)), "from": 0, "to": 1}
    tables.step(structs.ROWS, [buffer, row], [stage], rows=1, tile=LEAST_ROWS)
    return StreamRows(row, np.concatenate([order, order + width]))
