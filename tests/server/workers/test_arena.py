"""The arena: what one side writes the other reads, whatever the lengths; and it says when it is full."""

import os
import random

import pytest

from milkweed.server.workers.arena import Arena

SIZE = 1000


@pytest.fixture
def sides() -> tuple[Arena, Arena]:
    writer = Arena.make(SIZE)
    return writer, Arena(os.dup(writer.file), SIZE)


def test_what_is_written_is_read_across_the_end_of_the_ring(sides: tuple[Arena, Arena]) -> None:
    writer, reader = sides
    numbers = random.Random(0)
    sent: list[list[bytes]] = []
    for _ in range(2000):
        parts = [numbers.randbytes(numbers.randrange(0, 200)) for _ in range(numbers.randrange(1, 4))]
        while not writer.write(parts, sum(map(len, parts))):
            first = sent.pop(0)
            assert reader.read(map(len, first)) == first
        sent.append(parts)
    for parts in sent:
        assert reader.read(map(len, parts)) == parts


def test_a_full_arena_takes_nothing_until_something_is_read(sides: tuple[Arena, Arena]) -> None:
    writer, reader = sides
    assert writer.write([bytes(600)], 600)
    assert not writer.write([b"x" * 401], 401)
    assert writer.write([b"x" * 400], 400)
    assert not writer.write([b"y"], 1)
    assert reader.read([600, 400]) == [bytes(600), b"x" * 400]
    assert writer.write([b"y" * SIZE], SIZE)
    assert reader.read([SIZE]) == [b"y" * SIZE]


@pytest.mark.parametrize("length", [-1, SIZE + 1])
def test_a_length_that_cannot_be_is_refused(sides: tuple[Arena, Arena], length: int) -> None:
    with pytest.raises(ValueError, match=f"{length} bytes: the arena has {SIZE}"):
        sides[1].read([length])
