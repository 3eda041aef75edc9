"""Orders of channels: what is written in runs, and what fills them up."""

import numpy as np
import pytest

from milkweed.kernels.cpu.assembly.assemble import assemble
from milkweed.kernels.cpu.assembly.layout import groups_of, order_for, rows_by_position
from milkweed.kernels.cpu.instruction_sets import InstructionSet
from milkweed.kernels.cpu.structs import LINEAR, NORM

from ..vit_programs import made


def by_turns(blocks: int, width: int) -> np.ndarray:
    """The channels of each block, where blocks give theirs in turns."""
    return np.arange(width).reshape(-1, blocks).T


def test_runs_of_three_are_filled_up_and_the_weights_of_what_fills_them_are_zero() -> None:
    written = by_turns(2, 12)
    order = order_for(np.arange(12).reshape(2, 6), [*written], room=8)
    assert order.tolist() == [0, 2, 4, -1, 1, 3, 5, -1, 6, 8, 10, -1, 7, 9, 11, -1]
    place = np.full(12, -1)
    place[order[order >= 0]] = np.flatnonzero(order >= 0)
    rows, at = rows_by_position(written[1], place, np.flatnonzero(order < 0), 8)
    assert rows.tolist() == [0, 1, 2, -1, 3, 4, 5, -1]
    assert at.tolist() == [4, 5, 6, 7, 12, 13, 14, 15]


def test_where_no_place_is_free_nothing_is_filled_up() -> None:
    place = np.arange(12)
    rows, at = rows_by_position(np.array([0, 1, 2, 6, 7, 8]), place, np.arange(0), 16)
    assert (rows.tolist(), at.tolist()) == ([0, 1, 2, 3, 4, 5], [0, 1, 2, 6, 7, 8])
    some, _ = rows_by_position(np.array([0, 1, 2, 6, 7, 8]), place, np.array([3]), 16)
    assert -1 not in some


def test_nothing_is_filled_up_where_the_panels_have_no_room() -> None:
    written = by_turns(2, 12)
    assert -1 not in order_for(np.arange(12).reshape(2, 6), [*written], room=7)
    rows, _ = rows_by_position(np.arange(3), np.arange(3), np.arange(4), 3)
    assert -1 not in rows


def test_each_block_begins_at_a_multiple() -> None:
    order = order_for(np.arange(12).reshape(2, 6), [np.arange(12)], multiple=8)
    assert order.tolist() == [0, 1, 2, 3, 4, 5, -1, -1, 6, 7, 8, 9, 10, 11, -1, -1]


@pytest.mark.parametrize("width", [128, 192])
def test_an_mlp_of_eight_blocks_never_writes_channels_one_by_one(width: int, isa: InstructionSet) -> None:
    stages = assemble(made(nblocks=8, width=width), isa).stages
    written = stages[(stages["action"] == NORM) | (stages["action"] == LINEAR)]
    written = np.delete(written, [-3, -1])  # the embedding, a row in the channels' own order, and the classifier
    assert len(written) > 10
    assert written["group"].min() >= 4


def test_groups_are_as_large_as_all_runs_allow() -> None:
    assert groups_of(np.array([8, 9, 10, 11, 0, 1, 2, 3, -1, -1, -1, -1, 4, 5, 6, 7]))[0] == 4
    assert groups_of(np.arange(32))[0] == 16
    assert groups_of(np.arange(16)[::-1])[0] == 1
