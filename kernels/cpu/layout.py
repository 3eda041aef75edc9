"""Orders of channels in memory, chosen so that no permutation is ever a pass of its own.

Each vector of channels lies in an order of its own: the channel at each position, -1 where there is none. The blocks of
the factor that reads a vector have to be contiguous there; within a block any order will do, since the weights' columns
follow it. The rows of the factor that writes it may come in any order too, within a block. So what is written are runs
of neighbours, as long as both allow.
"""

from collections.abc import Sequence

import numpy as np

from .program import Places

GROUPS = (16, 8, 4, 1)
"""Numbers of neighbours that a vector of 16 is written in."""


def order_for(inputs: Places, written: Sequence[Places]) -> Places:
    """Return the order of a vector whose reader has the blocks `inputs` (blocks, in); its length is blocks x in.

    Args:
        written: the channels that each block of the writer gives, in the order in which it would give them. Channels
            that nobody writes have places too, behind the others of their block.
    """
    rank = np.full(max(inputs.max(), *(each.max() for each in written)) + 1, inputs.size)
    for place, channel in enumerate(np.concatenate(list(written))):
        rank[channel] = place
    order = np.take_along_axis(inputs, np.argsort(rank[inputs], axis=1, kind="stable"), axis=1)
    return np.where(rank[order] < inputs.size, order, -1).reshape(-1)


def positions(order: Places, channels: int) -> Places:
    """Return the position of each channel; -1 for one that has none."""
    found = np.full(channels, -1)
    found[order[order >= 0]] = np.flatnonzero(order >= 0)
    return found


def rows_by_position(outputs: Places, place: Places) -> tuple[Places, Places]:
    """Return in which order a block gives its rows, and their positions; dropped ones, at -1, come last.

    Args:
        outputs: (out,), the block's channels.
        place: position of each channel that is kept.
    """
    kept = outputs < len(place)
    at = np.where(kept, place[np.where(kept, outputs, 0)], -1)
    rows = np.argsort(np.where(at < 0, np.iinfo(at.dtype).max, at), kind="stable")
    return rows, at[rows]


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
