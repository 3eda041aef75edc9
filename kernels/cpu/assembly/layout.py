"""Orders of channels in memory, chosen so that no permutation is ever a pass of its own.

Each vector of channels lies in an order of its own: the channel at each position, -1 where there is none. The blocks of
the factor that reads a vector have to be contiguous there; within a block any order will do, since the weights' columns
follow it. The rows of the factor that writes it may come in any order too, within a block. So what is written are runs
of neighbours, as long as both allow.
"""

from collections.abc import Sequence

import numpy as np

from ..row_operators import Places

GROUPS = (16, 8, 4, 1)
"""Numbers of neighbours that a vector of 16 is written in."""

FILLED = 4
"""Where panels have room, runs of neighbours are filled up to a multiple of this: then none is written alone."""


def order_for(inputs: Places, written: Sequence[Places], room: int = 0, multiple: int = 1) -> Places:
    """Return the order of a vector whose reader has the blocks `inputs` (blocks, in): one block behind the other.

    Args:
        written: the channels that each block of the writer gives, in the order in which it would give them. What one
            gives to a block of the reader is a run. Channels that nobody writes have places too, behind the others of
            their block.
        room: rows that a block of the writer may have, so that runs may be filled up.
        multiple: each block of the vector has a multiple of so many places.
    """
    channels = max(inputs.max(), *(block.max(initial=0) for block in written)) + 1
    rank, writer = np.full(channels, inputs.size), np.full(channels, -1)
    rank[np.concatenate(list(written))] = np.arange(sum(map(len, written)))
    for block, block_channels in enumerate(written):
        writer[block_channels] = block
    order = np.take_along_axis(inputs, np.argsort(rank[inputs], axis=1, kind="stable"), axis=1)
    blocks = _filled([np.split(row, np.flatnonzero(np.diff(writer[row])) + 1) for row in order], writer, room)
    length = -(-max(map(len, blocks)) // multiple) * multiple
    order = np.stack([np.pad(block, (0, length - len(block)), constant_values=-1) for block in blocks])
    return np.where((order >= 0) & (rank[order] < inputs.size), order, -1).reshape(-1)


def _filled(blocks: Sequence[Sequence[Places]], writer: Places, room: int) -> list[Places]:
    """Return blocks of their runs, with -1 behind each, unless a block of the writer had more than `room` rows then."""
    rows = np.zeros(writer.max() + 2, np.int64)  # the last is of channels that nobody writes
    for run in (run for block in blocks for run in block):
        rows[writer[run[0]]] += _whole(run)
    fill = rows[:-1].max(initial=0) <= room
    return [
        np.concatenate([np.pad(run, (0, fill * (_whole(run) - len(run))), constant_values=-1) for run in block])
        for block in blocks
    ]


def _whole(run: Places) -> int:
    """The length of a run that is filled up."""
    return -(-len(run) // FILLED) * FILLED


def positions(order: Places, channels: int) -> Places:
    """Return the position of each channel; -1 for one that has none."""
    places = np.full(channels, -1)
    places[order[order >= 0]] = np.flatnonzero(order >= 0)
    return places


def rows_by_position(outputs: Places, place: Places, free: Places, room: int) -> tuple[Places, Places]:
    """Return in which order a block gives its rows, and their positions; dropped ones, at -1, come last.

    Args:
        outputs: (out,), the block's channels.
        place: position of each channel that is kept.
        free: positions that rows of zeros, -1, may be written to, so as to fill up runs.
        room: rows that there may be then.
    """
    kept = outputs < len(place)
    at = np.where(kept, place[np.where(kept, outputs, 0)], -1)
    rows = np.argsort(np.where(at < 0, np.iinfo(at.dtype).max, at), kind="stable")
    at = at[rows]
    runs = np.split(at, np.flatnonzero(np.diff(at) != 1) + 1)
    missing = [(_whole(run) - len(run)) * (run[0] >= 0) for run in runs]
    behind = [run[-1] + 1 + np.arange(count) for run, count in zip(runs, missing, strict=True)]
    if not 0 < sum(missing) <= room - len(at) or not np.isin(np.concatenate(behind), free).all():
        return rows, at
    ends = np.repeat(np.cumsum([len(run) for run in runs]), missing)
    return np.insert(rows, ends, -1), np.insert(at, ends, np.concatenate(behind))


def groups_of(places: Places) -> tuple[int, Places]:
    """Return the size of the largest groups of neighbours, and the position of each group, -1 where it is dropped.

    Args:
        places: positions of the rows, as many as a multiple of 16; -1 where a row is dropped.
    """
    for group in GROUPS:
        cut = places.reshape(-1, group)
        first = cut[:, :1]
        if np.all(np.where(first < 0, cut < 0, cut == first + np.arange(group))):
            return group, cut[:, 0]
    raise AssertionError("groups of one always fit")
