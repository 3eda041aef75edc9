"""Several devices: each has its part of the work, and models come and go on all of them."""

import asyncio
import gc
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from milkweed.server.config.settings import Settings
from milkweed.server.engine.engine_group import share_of

from ...support.server_parts import Start, encoded, until
from .held_engines import TWO, HeldEngine, both, one_in_each, post, statuses


def scores(answer: Any) -> dict[int, float]:
    [result] = answer.json()["results"]
    return {each["index"]: each["score"] for each in result["predictions"]}


@pytest.mark.parametrize("overlap", ["off", "on"])
async def test_both_work_at_the_same_time_and_answer_as_one_does(running: Start, overlap: str) -> None:
    torch.manual_seed(0)
    async with running(settings={**TWO, "device": "cpu"}) as app:
        alone = [scores(await post(app, seed)) for seed in range(24)]
    torch.manual_seed(0)  # the same model again
    async with running(settings={**TWO, "overlap": overlap}) as app:
        first, second = both(app)
        tasks = await one_in_each(app, first, second)
        first.gate.set()
        second.gate.set()
        tasks += [post(app, seed) for seed in range(2, 24)]
        for task, expected in zip(tasks, alone, strict=True):
            assert scores(await task) == pytest.approx(expected, abs=1e-6)
        assert sum(first.sizes) + sum(second.sizes) == 24
        for name in ("cpu:0", "cpu:1"):
            # the books are kept after the answer
            await until(lambda name=name: app.value("engine_busy_seconds_total", device=name) > 0)
            assert app.value("engine_up", device=name) == 1
        [listed] = (await app.client.get("/v1/models")).json()["models"]
        assert listed["device"] == "cpu:0,cpu:1"
        text = (await app.client.get("/metrics")).text
        assert 'device="cpu:0,cpu:1"' in text  # of model_info
    assert first.closed == second.closed == 1


async def test_a_slow_device_holds_up_nobody_but_its_own(running: Start) -> None:
    async with running(settings=TWO) as app:
        first, second = both(app)
        tasks = await one_in_each(app, first, second)
        second.gate.set()
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        for seed in range(10):
            assert (await post(app, seed)).status_code == 200
        assert sum(first.sizes) == 1
        first.gate.set()
        assert await statuses(tasks) == {200: 2}
        assert sum(second.sizes) == 11


async def test_a_model_has_gone_once_it_is_closed_on_every_device(running: Start) -> None:
    async with running(settings=TWO, names=("held", "other")) as app:
        first, second = both(app)
        others = HeldEngine(app, 0, "other"), HeldEngine(app, 1, "other")
        leaving = app.service.models["other"]
        tasks = await one_in_each(app, first, second)
        first.gate.set()
        taking_out = asyncio.create_task(app.service.lifecycle.unload("other"))
        await until(lambda: others[0].closed == 1)
        await asyncio.sleep(0.05)  # the other engine is in a forward: a wait for what must not happen
        assert others[1].closed == 0
        assert not taking_out.done()
        assert leaving.key in app.service.scheduler.models
        second.gate.set()
        assert await taking_out == (leaving,)
        assert others[1].closed == 1
        assert leaving.key not in app.service.loaded
        assert await statuses(tasks) == {200: 2}


@pytest.mark.parametrize("overlap", ["off", "on"])
@pytest.mark.slow
async def test_reloads_under_load_lose_nothing_and_close_everything(running: Start, overlap: str) -> None:
    async with running(settings={**TWO, "overlap": overlap}) as app:
        answers: Counter[int] = Counter()
        stop = asyncio.Event()

        async def client(seed: int) -> None:
            while not stop.is_set():
                answers[(await app.classify(encoded(seed=seed))).status_code] += 1

        clients = [asyncio.create_task(client(seed)) for seed in range(4)]
        held = []
        for number in range(6):
            held += both(app)
            await app.service.lifecycle.load("held", Path("x"), str(number))
        stop.set()
        await asyncio.gather(*clients)
        await app.service.lifecycle.settled()
        assert set(answers) == {200}
        assert [each.closed for each in held] == [1] * 12
        assert sum(sum(each.sizes) for each in held) > 0
        for engine in app.service.engines.engines:
            assert len(engine.models) == 1
        assert len(app.service.scheduler.models) == len(app.service.loaded) == 1


@pytest.mark.parametrize("device", ["cpu", "cpu,cpu"])
@pytest.mark.slow_beyond(1)
async def test_nothing_holds_what_served_first(running: Start, device: str) -> None:
    async with running(settings={**TWO, "device": device}) as app:
        held = [weakref.ref(pipeline) for pipeline in app.service.models["held"].pipelines.values()]
        assert (await post(app)).status_code == 200
        await app.service.lifecycle.load("held", Path("x"), "2")
        await app.service.lifecycle.settled()
        await post(app)  # the engine's last look at it is over
        gc.collect()
        assert [each() for each in held] == [None] * len(device.split(","))


def test_threads_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milkweed.server.engine.engine_group.usable_cores", lambda: 16)
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 1)
    one = Settings()
    assert share_of(one, cpu, 1) is one
    auto = share_of(one, cpu, 4)
    assert (auto.decode_threads, auto.lanes, auto.threads_per_image, auto.device) == (4, 4, 1, "cpu")
    asked = share_of(Settings(decode_threads=6, lanes=5, threads_per_image=2), cpu, 2)
    assert (asked.decode_threads, asked.lanes, asked.threads_per_image) == (3, 2, 2)
    least = share_of(Settings(decode_threads=1, lanes=1), cpu, 64)
    assert (least.decode_threads, least.lanes, least.threads_per_image) == (1, 1, 1)
    on_gpu = share_of(one, gpu, 4)
    assert (on_gpu.decode_threads, on_gpu.lanes, on_gpu.device) == (4, 0, "cuda:1")
