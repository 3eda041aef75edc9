"""Decoding ahead of the forward: what waits goes together, the ring is bounded, a decoder that hangs is seen."""

import asyncio
import threading
from typing import Any

import pytest

from milkweed.server.engine.engine import MAX_FAILURES

from ...support.server_parts import Held, Start, broken, entered, timings, until
from .held_engines import post

ON = {"overlap": "on", "max_batch_size": 4}


class HeldLoader(Held):
    """Stands before the loader of an app, whose batches it can hold."""

    def __init__(self, app: Any) -> None:
        super().__init__()
        loader = next(iter(app.service.models.values())).pipeline.loader
        self._load, loader.load = loader.load, self.load

    def load(self, items: Any, infos: Any = None, sources: Any = None) -> Any:
        self.hold(len(items))
        return self._load(items, infos, sources)


@pytest.mark.parametrize(("overlap", "counted"), [("off", True), ("on", False)])
async def test_busy_is_the_time_of_the_engines_own_thread(running: Start, overlap: str, counted: bool) -> None:
    async with running(settings={**ON, "overlap": overlap}) as app:
        loader = HeldLoader(app)
        loader.gate.clear()
        task = post(app)
        await entered(loader)
        await asyncio.sleep(0.3)
        loader.gate.set()
        assert (await task).status_code == 200
        await until(lambda: app.value("engine_busy_seconds_total", device="cpu") > 0)
        assert (app.value("engine_busy_seconds_total", device="cpu") >= 0.3) == counted


async def test_images_are_decoded_while_a_forward_runs_and_then_go_together(running: Start) -> None:
    async with running(settings=ON) as app:
        loader = HeldLoader(app)
        tasks = [await app.hold()]
        for seed in (1, 2, 3):  # one after the other: each is decoded at once, by itself
            tasks.append(post(app, seed))
            await until(lambda seen=seed + 1: len(loader.sizes) == seen)
        assert loader.sizes == [1, 1, 1, 1]
        await until(lambda: app.service.engines.engines[0].decoded_images == 3)  # decoded, all three
        app.model.gate.set()
        answers = [(await task).json()["results"][0] for task in tasks]
        assert app.model.sizes == [1, 3]
        await until(lambda: app.value("batch_size_count", model="held") == 2)
        assert app.value("batch_size_sum", model="held") == 4
        alone = [(await post(app, seed)).json()["results"][0] for seed in range(4)]
    assert [[p["index"] for p in answer["predictions"]] for answer in answers] == [
        [p["index"] for p in answer["predictions"]] for answer in alone
    ]


async def test_what_is_decoded_ahead_is_bounded(running: Start) -> None:
    async with running(settings=ON) as app:
        loader = HeldLoader(app)
        tasks = [await app.hold()]
        loader.gate.clear()
        tasks += [post(app, seed) for seed in range(20)]
        await until(lambda: app.service.scheduler.depth + sum(loader.sizes) == 21)
        loader.gate.set()
        await until(lambda: sum(loader.sizes) >= 1 + 4)
        await asyncio.sleep(0.05)  # nothing more comes: a wait for what must not happen
        assert sum(loader.sizes) <= 1 + 4 + 3  # one short of full, and then a whole batch
        assert app.service.scheduler.depth >= 13
        app.model.gate.set()
        assert {(await task).status_code for task in tasks} == {200}
        assert max(app.model.sizes) <= 4


async def test_a_decoder_that_hangs_turns_liveness_red_while_the_loop_answers(running: Start) -> None:
    async with running(settings={**ON, "engine_stall_seconds": 1.0}) as app:
        loader = HeldLoader(app)
        loader.gate.clear()
        stuck = post(app)
        await until(lambda: bool(loader.sizes))
        assert (await app.client.get("/livez")).status_code == 200
        await until(lambda: app.service.engines.engines[0].silent_seconds() > 1.0)
        live = await app.client.get("/livez")
        assert live.status_code == 503
        assert "does not answer" in live.json()["error"]["message"]
        loader.gate.set()
        assert (await stuck).status_code == 200
        await until(lambda: app.service.engines.alive)


async def test_a_device_that_fails_every_batch_is_not_alive(running: Start) -> None:
    async with running() as app:
        app.model.failure = RuntimeError("CUDA error: an illegal memory access was encountered")
        for _ in range(MAX_FAILURES):
            assert (await app.client.get("/livez")).status_code == 200
            assert (await post(app)).status_code == 500
        assert (await app.client.get("/livez")).status_code == 503
        app.model.failure = None
        assert (await post(app)).status_code == 200
        assert (await app.client.get("/livez")).status_code == 200


async def test_a_forward_that_fails_fails_what_shared_it(running: Start) -> None:
    async with running(settings=ON) as app:
        loader = HeldLoader(app)
        first = await app.hold()
        good = post(app, 1)
        await until(lambda: len(loader.sizes) == 2)
        bad = app.begin(broken())
        await until(lambda: len(loader.sizes) == 3)
        app.model.failure = RuntimeError("device lost")
        app.model.gate.set()
        assert (await first).status_code == 500
        assert (await good).status_code == 500
        assert (await bad).status_code == 422  # it had an error of its own before
        app.model.failure = None
        assert (await post(app)).status_code == 200


async def test_models_do_not_share_a_forward(running: Start) -> None:
    async with running(settings=ON, names=("held", "other")) as app:
        held, other = app.models["held"], app.models["other"]
        held.gate.clear()
        tasks = [post(app)]
        await entered(held)
        for count, name in enumerate(("held", "other", "held"), 1):
            tasks.append(app.begin(params={"model": name}))
            await until(lambda count=count: app.service.engines.engines[0].decoded_images == count)
        held.gate.set()
        assert {(await task).status_code for task in tasks} == {200}
        assert other.sizes == [1]
        assert sum(held.sizes) == 3


@pytest.mark.parametrize("overlap", ["off", "on"])
async def test_stopping_answers_what_is_decoded_and_what_waits(running: Start, overlap: str) -> None:
    async with running(settings={**ON, "overlap": overlap}) as app:
        loader = HeldLoader(app)
        tasks = [await app.hold(), *(post(app, seed) for seed in range(9))]
        await until(lambda: app.service.scheduler.depth + sum(loader.sizes) == 10)
        assert not await asyncio.to_thread(app.service.engines.stop, 0.01)  # it hangs, and that is told
        stopping = asyncio.create_task(app.service.stop())
        app.model.gate.set()
        assert await stopping
        assert {(await task).status_code for task in tasks} == {200}


async def test_stages_add_up_with_overlap(running: Start) -> None:
    async with running(settings=ON) as app:
        HeldLoader(app)
        first = await app.hold()
        second = post(app, 1)
        await until(lambda: app.service.engines.engines[0].decoded_images == 1)
        await asyncio.sleep(0.05)
        app.model.gate.set()
        for task in (first, second):
            stages = timings(await task)
            total = stages.pop("total")
            assert sum(stages.values()) == pytest.approx(total, abs=0.02)
        assert stages["ready"] > 30  # the second was decoded and waited for the device


async def test_auto_is_off_on_a_cpu(running: Start) -> None:
    for overlap, wanted in (("auto", False), ("on", True), ("off", False)):
        before = set(threading.enumerate())
        async with running(settings={"overlap": overlap}) as app:
            assert (await post(app)).status_code == 200
            names = {thread.name for thread in set(threading.enumerate()) - before}
            assert ("milkweed-decode" in names) == wanted
