"""What waits is done one in a turn of the loop, in its order."""

import asyncio
from functools import partial

from milkweed.server.http.transport.turns import Turns

from ....support.waiting import until


async def test_one_call_a_turn_also_of_those_that_a_call_adds() -> None:
    turns, made, turn = Turns(), list[tuple[str, int]](), 0

    def call(name: str, then: str = "") -> None:
        made.append((name, turn))
        if then:
            turns.add(partial(call, then))

    for name in "abc":
        turns.add(partial(call, name, "d" if name == "b" else ""))
    while len(made) < 4:
        turn += 1
        await asyncio.sleep(0)
    assert [name for name, _ in made] == ["a", "b", "c", "d"]
    assert len({turn for _, turn in made}) == 4


async def test_after_a_pause_it_goes_on() -> None:
    turns, made = Turns(), list[int]()
    for number in range(2):
        turns.add(partial(made.append, number))
        await until(lambda: len(made) == number + 1)  # noqa: B023
    assert made == [0, 1]
