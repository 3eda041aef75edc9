"""Several devices: each has its part of the work, and one that fails costs what it had in hand."""

import asyncio
import gc
import threading
import weakref
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from milkweed.models.errors import BundleError
from milkweed.server.device import DeviceError
from milkweed.server.engine import MOST_FAILURES, MOST_RESTARTS
from milkweed.server.engines import share_of
from milkweed.server.opening import open_on_all
from milkweed.server.settings import Settings

pytestmark = pytest.mark.anyio

TWO = {"device": "cpu,cpu", "max_batch_size": 4}
KILLED = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class Held:
    """Stands before one engine's decoder and forward: holds them still, lets them fail, counts their batches."""

    def __init__(self, app: Any, place: int, name: str = "held") -> None:
        self.pipeline = app.service.models[name].replicas[place]
        self._load, self._run, self._close = (
            self.pipeline.loader.load,
            self.pipeline._lanes.run,
            self.pipeline.close,
        )
        self.pipeline.loader.load, self.pipeline._lanes.run, self.pipeline.close = self.load, self.run, self.close
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.sizes: list[int] = []
        self.load_failure: BaseException | None = None
        self.failure: BaseException | None = None
        self.closed = 0

    def load(self, items: Any, infos: Any = None, sources: Any = None) -> Any:
        self.sizes.append(len(items))
        if self.load_failure is not None:
            raise self.load_failure
        return self._load(items, infos, sources)

    def run(self, pixels: Any) -> Any:
        self.entered.release()
        assert self.gate.wait(10), "nobody opened the gate"
        if self.failure is not None:
            raise self.failure
        return self._run(pixels)

    def close(self) -> None:
        self.closed += 1
        self._close()


def both(app: Any) -> tuple[Held, Held]:
    return Held(app, 0), Held(app, 1)


def post(app: Any, kit: ModuleType, seed: int = 0) -> "asyncio.Task[Any]":
    return asyncio.create_task(app.client.post("/classify", content=kit.encoded(seed=seed)))


async def one_in_each(app: Any, kit: ModuleType, first: Held, second: Held) -> "list[asyncio.Task[Any]]":
    """Requests whose forwards have begun, one on each engine; both gates are closed."""
    await kit.until(lambda: all(seat.waiting for seat in app.service.batcher._seats))
    first.gate.clear()
    second.gate.clear()
    tasks = [post(app, kit)]
    await kit.until(lambda: len(first.sizes) + len(second.sizes) == 1)
    tasks.append(post(app, kit, 1))
    await kit.entered(first)
    await kit.entered(second)  # though the other is not done
    assert first.sizes == second.sizes == [1]
    return tasks


async def statuses(tasks: "list[asyncio.Task[Any]]") -> Counter[int]:
    return Counter([(await task).status_code for task in tasks])


def scores(answer: Any) -> dict[int, float]:
    [result] = answer.json()["results"]
    return {each["index"]: each["score"] for each in result["predictions"]}


@pytest.mark.parametrize("overlap", ["off", "on"])
async def test_both_work_at_the_same_time_and_answer_as_one_does(running: Any, kit: ModuleType, overlap: str) -> None:
    torch.manual_seed(0)
    async with running(settings={**TWO, "device": "cpu"}) as app:
        alone = [scores(await post(app, kit, seed)) for seed in range(24)]
    torch.manual_seed(0)  # the same model again
    async with running(settings={**TWO, "overlap": overlap}) as app:
        first, second = both(app)
        tasks = await one_in_each(app, kit, first, second)
        first.gate.set()
        second.gate.set()
        tasks += [post(app, kit, seed) for seed in range(2, 24)]
        for task, expected in zip(tasks, alone, strict=True):
            assert scores(await task) == pytest.approx(expected, abs=1e-6)
        assert sum(first.sizes) + sum(second.sizes) == 24
        for name in ("cpu:0", "cpu:1"):
            # the books are kept after the answer
            await kit.until(lambda name=name: app.value("engine_busy_seconds_total", device=name) > 0)
            assert app.value("engine_up", device=name) == 1
        [listed] = (await app.client.get("/v1/models")).json()["models"]
        assert listed["device"] == "cpu:0,cpu:1"
        text = (await app.client.get("/metrics")).text
        assert 'device="cpu:0,cpu:1"' in text  # of model_info
    assert first.closed == second.closed == 1


async def test_a_slow_device_holds_up_nobody_but_its_own(running: Any, kit: ModuleType) -> None:
    async with running(settings=TWO) as app:
        first, second = both(app)
        tasks = await one_in_each(app, kit, first, second)
        second.gate.set()
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        for seed in range(10):
            assert (await post(app, kit, seed)).status_code == 200
        assert sum(first.sizes) == 1
        first.gate.set()
        assert await statuses(tasks) == {200: 2}
        assert sum(second.sizes) == 11


@KILLED
@pytest.mark.parametrize("overlap", ["off", "on"])
async def test_a_killed_engine_loses_what_it_had_in_hand_and_is_begun_again(
    running: Any, kit: ModuleType, overlap: str
) -> None:
    async with running(settings={**TWO, "overlap": overlap}) as app:
        first, second = both(app)
        tasks = await one_in_each(app, kit, first, second)
        second.failure = SystemExit("killed")
        second.gate.set()
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        second.failure = None
        first.gate.set()
        assert await statuses(tasks) == {200: 1, 500: 1}
        assert await statuses([post(app, kit, seed) for seed in range(20)]) == {200: 20}
        assert app.value("engine_restarts_total", device="cpu:1") == 1
        assert app.value("engine_restarts_total", device="cpu:0") == 0
        assert app.value("engine_up", device="cpu:1") == 1
        assert (await app.client.get("/livez")).status_code == 200


@KILLED
@pytest.mark.parametrize("overlap", ["off", "on"])
async def test_an_engine_that_is_gone_for_good_leaves_the_rest_serving(
    running: Any, kit: ModuleType, overlap: str
) -> None:
    async with running(settings={**TWO, "overlap": overlap}) as app:
        first, second = both(app)
        second.load_failure = SystemExit("again")
        answers: Counter[int] = Counter()
        async with asyncio.timeout(20):
            while not app.service.engines.each[1].ended:
                answers[(await post(app, kit)).status_code] += 1
        assert answers[500] == MOST_RESTARTS + 1 == len(second.sizes)
        await kit.until(lambda: second.closed == 1)  # its memory is back
        assert await statuses([post(app, kit, seed) for seed in range(20)]) == {200: 20}
        live, ready = await app.client.get("/livez"), await app.client.get("/readyz")
        assert (live.status_code, ready.status_code) == (503, 200)
        assert "no answer from the engine on cpu:1" in live.json()["error"]["message"]
        assert [app.value("engine_up", device=name) for name in ("cpu:0", "cpu:1")] == [1, 0]
        # models still come and go
        old = app.service.models["held"]
        await app.service.rollout.bring_in("held", Path("x"), "2")
        async with asyncio.timeout(10):
            await app.service.rollout.settled()
        assert (first.closed, second.closed) == (1, 1)
        assert old.key not in app.service.batcher._lines
        assert list(app.service.models["held"].replicas) == [0]
        assert (await post(app, kit)).status_code == 200


@KILLED
async def test_when_the_last_engine_ends_nobody_hangs(running: Any, kit: ModuleType) -> None:
    async with running(settings=TWO) as app:
        for held in both(app):
            held.load_failure = SystemExit("again")
        async with asyncio.timeout(20):
            while not app.service.engines.ended:
                assert (await post(app, kit)).status_code in (500, 503)
        kit.check_error(await post(app, kit), 503, "not_ready", "the engine has ended")
        assert (await app.client.get("/readyz")).status_code == 503


async def test_a_device_that_fails_every_batch_takes_no_more_where_others_work(running: Any, kit: ModuleType) -> None:
    async with running(settings=TWO) as app:
        first, second = both(app)
        second.failure = RuntimeError("CUDA error: an illegal memory access was encountered")
        async with asyncio.timeout(20):
            while not app.service.engines.each[1].ended:
                await post(app, kit)
        assert len(second.sizes) == MOST_FAILURES
        assert await statuses([post(app, kit, seed) for seed in range(20)]) == {200: 20}
        assert [(await app.client.get(path)).status_code for path in ("/livez", "/readyz")] == [503, 200]
        first.failure = RuntimeError("this one too")  # the last one goes on trying
        assert await statuses([post(app, kit) for _ in range(1)]) == {500: 1}
        for _ in range(2 * MOST_FAILURES):
            await post(app, kit)
        assert not app.service.engines.each[0].ended
        first.failure = None
        assert (await post(app, kit)).status_code == 200


async def test_a_hanging_device_is_told_and_the_other_serves(running: Any, kit: ModuleType) -> None:
    async with running(settings={**TWO, "engine_stall_seconds": 0.1}) as app:
        first, second = both(app)
        tasks = await one_in_each(app, kit, first, second)
        first.gate.set()
        await kit.until(lambda: not app.service.engines.each[1].alive)
        live, ready = await app.client.get("/livez"), await app.client.get("/readyz")
        assert (live.status_code, ready.status_code) == (503, 200)
        assert "cpu:1" in live.json()["error"]["message"]
        assert await statuses([post(app, kit, seed) for seed in range(10)]) == {200: 10}
        assert sum(second.sizes) == 1
        second.gate.set()
        assert await statuses(tasks) == {200: 2}
        assert (await app.client.get("/livez")).status_code == 200
        assert first.closed == 0


async def test_a_model_has_gone_once_it_is_closed_on_every_device(running: Any, kit: ModuleType) -> None:
    async with running(settings=TWO, names=("held", "other")) as app:
        first, second = both(app)
        others = Held(app, 0, "other"), Held(app, 1, "other")
        leaving = app.service.models["other"]
        tasks = await one_in_each(app, kit, first, second)
        first.gate.set()
        taking_out = asyncio.create_task(app.service.rollout.take_out("other"))
        await kit.until(lambda: others[0].closed == 1)
        await asyncio.sleep(0.05)  # the other engine is in a forward: a wait for what must not happen
        assert others[1].closed == 0
        assert not taking_out.done()
        assert leaving.key in app.service.batcher._lines
        second.gate.set()
        assert await taking_out == (leaving,)
        assert others[1].closed == 1
        assert leaving.key not in app.service.rollout._by_key
        assert await statuses(tasks) == {200: 2}


@pytest.mark.parametrize("overlap", ["off", "on"])
async def test_reloads_under_load_lose_nothing_and_close_everything(
    running: Any, kit: ModuleType, overlap: str
) -> None:
    async with running(settings={**TWO, "overlap": overlap}) as app:
        answers: Counter[int] = Counter()
        stop = asyncio.Event()

        async def client(seed: int) -> None:
            while not stop.is_set():
                answers[(await app.client.post("/classify", content=kit.encoded(seed=seed))).status_code] += 1

        clients = [asyncio.create_task(client(seed)) for seed in range(4)]
        held = []
        for number in range(6):
            held += both(app)
            await app.service.rollout.bring_in("held", Path("x"), str(number))
        stop.set()
        await asyncio.gather(*clients)
        await app.service.rollout.settled()
        assert set(answers) == {200}
        assert [each.closed for each in held] == [1] * 12
        assert sum(sum(each.sizes) for each in held) > 0
        for engine in app.service.engines.each:
            assert len(engine._pipelines) == 1
        assert len(app.service.batcher._lines) == len(app.service.rollout._holders) == 1


@pytest.mark.parametrize("device", ["cpu", "cpu,cpu"])
async def test_nothing_holds_what_served_first(running: Any, kit: ModuleType, device: str) -> None:
    async with running(settings={**TWO, "device": device}) as app:
        held = [weakref.ref(pipeline) for pipeline in app.service.models["held"].pipelines]
        assert (await post(app, kit)).status_code == 200
        await app.service.rollout.bring_in("held", Path("x"), "2")
        await app.service.rollout.settled()
        await post(app, kit)  # the engine's last look at it is over
        gc.collect()
        assert [each() for each in held] == [None] * len(device.split(","))


def test_a_device_that_cannot_load_a_model_is_named_and_nothing_stays_open(
    kit: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    closed: list[int] = []
    settings = {place: Settings() for place in (0, 1)}
    names = {0: "cuda:0", 1: "cuda:1"}

    def open_held(name: str, path: Path, settings: Settings) -> Any:
        if len(opened) == 1:
            raise failure
        model = kit.ServedModel.of(
            name, kit.make_config(), kit.make_pipeline(kit.HeldModel()), kit.image_limits(settings), 8
        )
        model.pipeline.close = lambda: closed.append(1)
        opened.append(model)
        return model

    for error, line in (
        (BundleError("bundle x: golden image 0, class 3"), "device cuda:1: bundle x: golden image 0, class 3"),
        (RuntimeError("CUDA out of memory\nmore"), "model held cannot be opened: RuntimeError: CUDA out of memory"),
    ):
        failure = error
        opened: list[Any] = []
        closed.clear()
        with pytest.raises(DeviceError, match=line) as caught:
            open_on_all(open_held, "held", Path("x"), settings, names)
        assert "\n" not in str(caught.value)
        assert str(caught.value).startswith("device cuda:1: ")
        assert closed == [1]


def test_devices_that_would_answer_in_different_numbers_are_refused(kit: ModuleType) -> None:
    numbers = iter((torch.bfloat16, torch.float32))

    def open_held(name: str, path: Path, settings: Settings) -> Any:
        pipeline = kit.make_pipeline(kit.HeldModel())
        pipeline.dtype = next(numbers)
        return kit.ServedModel.of(name, kit.make_config(), pipeline, kit.image_limits(settings), 8)

    with pytest.raises(DeviceError, match="cuda:0 in bfloat16, cuda:1 in float32: set --dtype"):
        open_on_all(open_held, "a", Path("x"), {0: Settings(), 1: Settings()}, {0: "cuda:0", 1: "cuda:1"})


def test_threads_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milkweed.server.engines.usable_cores", lambda: 16)
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 1)
    one = Settings()
    assert share_of(one, cpu, 1) is one
    auto = share_of(one, cpu, 4)
    assert (auto.decode_threads, auto.lanes, auto.threads_per_lane, auto.device) == (4, 4, 1, "cpu")
    asked = share_of(Settings(decode_threads=6, lanes=5, threads_per_lane=2), cpu, 2)
    assert (asked.decode_threads, asked.lanes, asked.threads_per_lane) == (3, 2, 2)
    least = share_of(Settings(decode_threads=1, lanes=1), cpu, 64)
    assert (least.decode_threads, least.lanes, least.threads_per_lane) == (1, 1, 1)
    on_gpu = share_of(one, gpu, 4)
    assert (on_gpu.decode_threads, on_gpu.lanes, on_gpu.device) == (4, 0, "cuda:1")
