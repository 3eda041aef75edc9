"""Models come and go while others serve: atomically, verified, nothing lost, and their memory comes back."""

import asyncio
import gc
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from milkweed.models.errors import BundleError
from milkweed.server.config.settings import Settings
from milkweed.server.repository.index import ModelIndex
from milkweed.server.repository.served_model import ServedModel
from milkweed.server.repository.trial import TrialError
from milkweed.server.service import lifecycle

from ...support.server_parts import (
    HeldModel,
    Start,
    check_error,
    encoded,
    make_pipeline,
    one_reason,
    served_model,
    until,
)
from ...support.waiting import HANG_SECONDS


class Openers:
    """Stands for `open_model` after the start: what it makes next, and a gate before it."""

    def __init__(self, app: Any) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.failure: Exception | None = None
        self.models: list[Any] = []
        app.opening.open_model = self

    def __call__(self, name: str, path: Path, settings: Settings, **_: Any) -> ServedModel:
        assert self.gate.wait(HANG_SECONDS)
        if self.failure is not None:
            raise self.failure
        torch.manual_seed(len(self.models) + 100)
        model = HeldModel()
        self.models.append(model)
        pipeline = make_pipeline(model, max_batch_size=settings.max_batch_size)
        served = served_model(name, pipeline, settings)
        files = {**served.config.files, "model.safetensors": f"{len(self.models):064d}"}
        return replace(served, config=replace(served.config, files=files))


async def test_a_model_that_is_being_opened_is_a_series(running: Start) -> None:
    async with running() as app:
        openers = Openers(app)
        openers.gate.clear()
        began = time.time()
        loading = asyncio.create_task(app.service.lifecycle.load("held", Path("x"), "2"))
        await until(lambda: app.value("model_loading_timestamp_seconds", model="held") > 0)
        assert began - 1 <= app.value("model_loading_timestamp_seconds", model="held") <= time.time()
        openers.gate.set()
        await loading
        assert "model_loading_timestamp_seconds{" not in (await app.client.get("/metrics")).text


async def test_unloading_looks_for_garbage_among_what_came_since_the_start_alone(running: Start) -> None:
    async with running(names=("held", "other")) as app:
        gc.collect()
        gc.freeze()
        frozen = gc.get_freeze_count()
        await app.service.lifecycle.unload("other")
        # Frozen objects that are freed leave the count; what is thawed and frozen again would raise it.
        assert frozen // 2 < gc.get_freeze_count() <= frozen


async def test_a_failure_of_what_comes_after_stays_when_the_one_before_is_let_go(running: Start) -> None:
    async with running() as app:
        Openers(app)
        lifecycle = app.service.lifecycle
        await lifecycle.load("held", Path("x"), "2")  # in the place of the one without a number
        lifecycle.failed("held", "", BundleError("cut off"))
        await lifecycle.settled()
        assert lifecycle.failures == {("held", ""): "cut off"}
        lifecycle.forget("held", "")
        assert not lifecycle.failures


async def test_an_opening_that_does_not_end_is_given_up_and_keeps_nobody_waiting(
    running: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[ServedModel] = []
    monkeypatch.setattr(lifecycle, "END_SECONDS", -1.99)
    monkeypatch.setattr(lifecycle, "_close", closed.append)
    async with running(settings={"model_load_timeout_seconds": 1}) as app:
        stuck = Openers(app)
        stuck.gate.clear()
        with pytest.raises(TrialError, match=r"^model held cannot be opened: not done after 2 s$"):
            await app.service.lifecycle.load("held", Path("x"), "2")
        Openers(app)
        monkeypatch.setattr(lifecycle, "END_SECONDS", HANG_SECONDS)
        model = await app.service.lifecycle.load("held", Path("x"), "3")
        assert await version(app) == model.config.version
        stuck.gate.set()
        await until(lambda: bool(closed))  # what came too late
        assert closed[0].pipeline is not model.pipeline
        assert await version(app) == model.config.version


async def version(app: Any, **headers: str) -> str:
    answer = await app.classify(headers=headers)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["version"])


@pytest.mark.parametrize("overlap", ["off", "on"])
async def test_a_new_version_answers_once_it_is_warm_and_the_old_one_is_let_go(running: Start, overlap: str) -> None:
    async with running(settings={"overlap": overlap}) as app:
        old = app.service.models["held"]
        before = await version(app)
        openers = Openers(app)
        openers.gate.clear()
        loading = asyncio.create_task(app.service.lifecycle.load("held", Path("x"), "2"))
        assert await version(app) == before  # meanwhile the old one serves
        openers.gate.set()
        model = await loading
        assert await version(app) == model.config.version != before
        await app.service.lifecycle.settled()
        assert old.key not in app.service.engines.engines[0].models
        assert old.key not in app.service.scheduler.models
        assert app.value("model_ready", model="held", version=before) == 0
        assert app.value("model_ready", model="held", version=model.config.version) == 1
        listed = (await app.client.get("/v1/models")).json()["models"]
        assert [(each["version"], each["number"]) for each in listed] == [(model.config.version, "2")]


async def test_who_has_the_old_one_in_hand_is_answered_by_it(running: Start) -> None:
    async with running() as app:
        old = app.service.models["held"]
        openers = Openers(app)
        running_one = await app.hold()
        queued = app.begin(encoded(seed=1))
        await until(lambda: app.service.scheduler.depth == 1)
        # a third has only asked: its body is not there yet
        begun = asyncio.Event()
        more = asyncio.Event()

        async def body() -> Any:
            begun.set()
            yield encoded(seed=2)[:50]
            await more.wait()
            yield encoded(seed=2)[50:]

        reading = app.begin(body())
        await begun.wait()
        new = await app.service.lifecycle.load("held", Path("x"))
        late = app.begin()
        app.model.gate.set()
        assert (await running_one).json()["version"] == old.config.version
        assert (await queued).json()["version"] == old.config.version
        assert (await late).json()["version"] == new.config.version
        more.set()
        answer = (await reading).json()
        assert answer["version"] in (old.config.version, new.config.version)  # httpx may send before or after
        await app.service.lifecycle.settled()
        assert old.key not in app.service.engines.engines[0].models
        assert openers.models[0].sizes


async def test_versions_are_pinned_by_header(running: Start) -> None:
    async with running(settings={"keep_versions": 2}) as app:
        first = app.service.models["held"]
        Openers(app)
        second = await app.service.lifecycle.load("held", Path("x"), "2")
        assert await version(app) == second.config.version
        pinned = {"X-Model-Version": first.config.version}
        assert await version(app, **pinned) == first.config.version
        assert await version(app, **{"X-Model-Version": "2"}) == second.config.version
        async with one_reason(app, "unknown_model"):
            answer = await app.classify(headers={"X-Model-Version": "7"})
        check_error(answer, 404, "unknown_model", "no version '7' of held", first.config.version, "2 (")
        third = await app.service.lifecycle.load("held", Path("x"), "3")
        await app.service.lifecycle.settled()
        assert [model.number for model in app.service.models.versions("held")] == ["3", "2"]
        assert await version(app) == third.config.version
        assert (await app.classify(headers=pinned)).status_code == 404


async def test_a_model_whose_memory_cannot_be_given_back_holds_nobody_up(
    running: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def lost(on_gpu: bool) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    async with running() as app:
        Openers(app)
        await app.service.lifecycle.load("other", Path("x"))
        monkeypatch.setattr("milkweed.server.service.lifecycle._give_memory_back", lost)
        async with asyncio.timeout(HANG_SECONDS):
            assert len(await app.service.lifecycle.unload("other")) == 1
            await app.service.lifecycle.settled()
        assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [RuntimeError]
        assert await version(app)


async def test_no_key_is_given_twice(running: Start) -> None:
    async with running() as app:
        keys = [app.service.models["held"].key]
        openers = Openers(app)
        for _ in range(3):
            keys.append((await app.service.lifecycle.load("held", Path("x"))).key)
            openers.failure = BundleError("not sound")
            with pytest.raises(BundleError):
                await app.service.lifecycle.load("held", Path("x"))
            openers.failure = None
            keys.append((await app.service.lifecycle.load("other", Path("x"))).key)
            await app.service.lifecycle.unload("other")
        assert len(set(keys)) == len(keys) == 7


async def test_a_killed_thread_does_not_keep_what_was_leaving(running: Start) -> None:
    async with running(settings={"overlap": "on"}) as app:
        Openers(app)
        task = await app.hold()
        await app.service.lifecycle.load("held", Path("x"))
        app.model.failure = SystemExit("killed")
        app.model.gate.set()
        assert (await task).status_code == 500
        async with asyncio.timeout(HANG_SECONDS):
            await app.service.lifecycle.settled()
        assert await version(app)


def test_an_index_never_changes() -> None:
    def model(name: str, number: str) -> ServedModel:
        pipeline = make_pipeline(HeldModel())
        return served_model(name, pipeline, number=number)

    empty = ModelIndex()
    a1, a2, b = model("a", "1"), model("a", "2"), model("b", "")
    one, _ = empty.with_model(a1)
    two, out = one.with_model(b)
    assert not out
    three, out = two.with_model(a2, keep=2)
    assert not out
    _four, out = three.with_model(model("a", "2"), keep=2)  # the same number again
    assert out == (a2,)
    assert (len(empty), list(one), list(three), [m.number for m in three.versions("a")]) == (
        *(0, ["a"], ["a", "b"]),
        ["2", "1"],
    )
    assert three.find("a", "1") is a1
    assert three.find() is a2
    five, out = three.without("a", "2")
    assert out == (a2,)
    assert five.find("a") is a1
    six, _ = five.without("a")
    assert list(six) == ["b"]
    assert list(three.every()) == [a2, a1, b]
