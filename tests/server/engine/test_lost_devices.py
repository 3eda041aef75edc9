"""Several devices, one of them killed, broken or hanging: it costs what it had in hand, the others serve."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from milkweed.server.engine.engine import MAX_FAILURES, MAX_RESTARTS

from ...support.server_parts import Start, check_error, until
from ...support.waiting import HANG_SECONDS
from .held_engines import TWO, HeldEngine, both, one_in_each, post, statuses

KILLED = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


@KILLED
@pytest.mark.parametrize("overlap", ["off", "on"])
async def test_a_killed_engine_loses_what_it_had_in_hand_and_is_begun_again(running: Start, overlap: str) -> None:
    async with running(settings={**TWO, "overlap": overlap}) as app:
        first, second = both(app)
        tasks = await one_in_each(app, first, second)
        second.failure = SystemExit("killed")
        second.gate.set()
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        second.failure = None
        first.gate.set()
        assert await statuses(tasks) == {200: 1, 500: 1}
        assert await statuses([post(app, seed) for seed in range(20)]) == {200: 20}
        assert app.value("engine_restarts_total", device="cpu:1") == 1
        assert app.value("engine_restarts_total", device="cpu:0") == 0
        assert app.value("engine_up", device="cpu:1") == 1
        assert (await app.client.get("/livez")).status_code == 200


@KILLED
@pytest.mark.parametrize("overlap", ["off", "on"])
async def test_an_engine_that_is_gone_for_good_leaves_the_rest_serving(running: Start, overlap: str) -> None:
    async with running(settings={**TWO, "overlap": overlap}) as app:
        first, second = both(app)
        second.load_failure = SystemExit("again")
        answers: Counter[int] = Counter()
        async with asyncio.timeout(HANG_SECONDS):
            while not app.service.engines.engines[1].ended:
                answers[(await post(app)).status_code] += 1
        assert answers[500] == MAX_RESTARTS + 1
        await until(lambda: second.closed == 1)  # its memory is back
        assert await statuses([post(app, seed) for seed in range(20)]) == {200: 20}
        live, ready = await app.client.get("/livez"), await app.client.get("/readyz")
        assert (live.status_code, ready.status_code) == (503, 200)
        assert "no answer from the engine on cpu:1" in live.json()["error"]["message"]
        assert [app.value("engine_up", device=name) for name in ("cpu:0", "cpu:1")] == [1, 0]
        # models still come and go
        old = app.service.models["held"]
        await app.service.lifecycle.load("held", Path("x"), "2")
        async with asyncio.timeout(HANG_SECONDS):
            await app.service.lifecycle.settled()
        assert (first.closed, second.closed) == (1, 1)
        assert old.key not in app.service.scheduler.models
        assert list(app.service.models["held"].pipelines) == [0]
        assert (await post(app)).status_code == 200


@KILLED
@pytest.mark.parametrize("overlap", ["off", "on"])
@pytest.mark.parametrize("device", ["cpu", "cpu,cpu"])
async def test_when_the_last_engine_ends_nobody_hangs(running: Start, device: str, overlap: str) -> None:
    async with running(settings={**TWO, "device": device, "overlap": overlap}) as app:
        for engine_id in range(len(app.service.engines)):
            HeldEngine(app, engine_id).load_failure = SystemExit("again")
        assert (await statuses([post(app, seed) for seed in range(60)])).keys() == {500, 503}
        await until(lambda: app.service.engines.ended)
        check_error(await post(app), 503, "not_ready", "the engine has ended")
        assert [(await app.client.get(path)).status_code for path in ("/livez", "/readyz")] == [503, 503]


async def test_a_device_that_fails_every_batch_takes_no_more_where_others_work(running: Start) -> None:
    async with running(settings=TWO) as app:
        first, second = both(app)
        second.failure = RuntimeError("CUDA error: an illegal memory access was encountered")
        async with asyncio.timeout(HANG_SECONDS):
            while not app.service.engines.engines[1].ended:
                await post(app)
        assert len(second.sizes) == MAX_FAILURES
        assert await statuses([post(app, seed) for seed in range(20)]) == {200: 20}
        assert [(await app.client.get(path)).status_code for path in ("/livez", "/readyz")] == [503, 200]
        first.failure = RuntimeError("this one too")  # the last one goes on trying
        assert await statuses([post(app) for _ in range(1)]) == {500: 1}
        for _ in range(2 * MAX_FAILURES):
            await post(app)
        assert not app.service.engines.engines[0].ended
        first.failure = None
        assert (await post(app)).status_code == 200


async def test_a_hanging_device_is_told_and_the_other_serves(running: Start) -> None:
    async with running(settings={**TWO, "engine_stall_seconds": 1.0}) as app:
        first, second = both(app)
        tasks = await one_in_each(app, first, second)
        first.gate.set()
        await until(lambda: not app.service.engines.engines[1].alive)
        live, ready = await app.client.get("/livez"), await app.client.get("/readyz")
        assert (live.status_code, ready.status_code) == (503, 200)
        assert "cpu:1" in live.json()["error"]["message"]
        assert await statuses([post(app, seed) for seed in range(10)]) == {200: 10}
        assert sum(second.sizes) == 1
        second.gate.set()
        assert await statuses(tasks) == {200: 2}
        assert (await app.client.get("/livez")).status_code == 200
        assert first.closed == 0
