"""What waits is done one in a turn of the loop, in its order."""

import asyncio
from functools import partial
from itertools import pairwise

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


async def test_who_waits_alone_goes_at_once_and_others_one_a_turn_but_for_who_left() -> None:
    turns, went, turn = Turns(), list[tuple[int, int]](), 0

    async def wait(number: int) -> None:
        await turns.wait()
        went.append((number, turn))

    tasks = [asyncio.create_task(wait(number)) for number in range(5)]
    await asyncio.sleep(0)
    assert went == [(0, 0)]
    tasks[2].cancel()
    while len(went) < 4:
        turn += 1
        await asyncio.sleep(0)
    assert [number for number, _ in went] == [0, 1, 3, 4]
    assert len({turn for _, turn in went}) == 4


async def test_calls_are_as_far_apart_as_is_said_also_where_none_waited_between() -> None:
    loop = asyncio.get_running_loop()
    turns, made = Turns(0.05), list[float]()
    for count in (3, 4):
        while len(made) + len(turns._calls) < count:
            turns.add(lambda: made.append(loop.time()))
        await until(lambda: len(made) == count)  # noqa: B023
    assert all(after - before > 0.04 for before, after in pairwise(made))
