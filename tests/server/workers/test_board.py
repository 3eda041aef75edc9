"""The board: every process sees what one of them writes; the bodies of all workers are under one limit."""

import os

import pytest

from milkweed.server.errors import ServiceError
from milkweed.server.workers.board import Board, SharedHeldBytes


@pytest.fixture
def boards() -> tuple[Board, Board]:
    board = Board.make()
    return board, Board(os.dup(board.file))


def test_promises_and_beats_are_seen_on_the_other_side(boards: tuple[Board, Board]) -> None:
    engine, worker = boards
    assert worker.silent_seconds() == 0.0  # it never began
    assert worker.wait_seconds("bulk") == 0.0
    engine.beat()
    engine.promise("bulk", 100.0)
    assert 0.0 <= worker.silent_seconds() < 50
    assert 50 < worker.wait_seconds("bulk") <= 100
    assert worker.wait_seconds("interactive") == 0.0


def test_workers_share_one_limit_and_one_that_comes_again_holds_nothing(boards: tuple[Board, Board]) -> None:
    first, second = SharedHeldBytes(1000, boards[0], 0), SharedHeldBytes(1000, boards[1], 1)
    with first.hold() as mine, second.hold() as theirs:
        mine.take(600)
        with pytest.raises(ServiceError, match="bodies hold 600 bytes and 401 more exceed the limit of 1000"):
            theirs.take(401)
        theirs.take(400)
        with pytest.raises(ServiceError, match="1000 bytes and 1 more"):
            mine.take(1)
    assert boards[0].held() == 0
    lost = second.hold()
    lost.take(900)  # and its process is killed
    SharedHeldBytes(1000, boards[1], 1)
    with first.hold() as mine:
        mine.take(1000)
