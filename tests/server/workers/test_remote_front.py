"""A worker's front and the engine's hub, joined in one process: a request gets what it would get without them."""

import asyncio
import dataclasses
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from milkweed.server.http_app import http_app
from milkweed.server.image_limits import image_limits
from milkweed.server.security.gate import Gate
from milkweed.server.security.watch import FileWatch
from milkweed.server.served import ServedModel
from milkweed.server.workers.board import Board
from milkweed.server.workers.hub import Hub
from milkweed.server.workers.remote_front import RemoteFront

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def worker(app: Any, folder: Path, **settings: Any) -> AsyncIterator[tuple[RemoteFront, httpx.AsyncClient, Hub]]:
    """A worker before the service of `app`, a client of it, and the hub between them."""
    board, address = Board.make(), folder / "engine.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as meeting:
        meeting.bind(str(address))
        meeting.listen()
        hub = Hub(app.service, board, meeting)
        hub.start()
        given = app.service.settings.model_copy(update=settings)
        front = RemoteFront(given, 0, Board(os.dup(board.file)), address, ["held"])
        gate = Gate(given, front.metrics, FileWatch(front.metrics.reload_failing))
        http = http_app(front, gate, tracer=None, lifespan=lambda _: worker(app, folder))
        front.start()
        await front.wait_for_models(10)
        transport = httpx.ASGITransport(app=http, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://worker") as client:
            yield front, client, hub
        await front.stop()
        hub.stop()


def error(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def test_answers_and_refusals_are_those_of_the_service(running: Any, kit: ModuleType, tmp_path: Path) -> None:
    bodies = [kit.encoded(), kit.encoded("JPEG", seed=3), kit.broken(), b"nothing", b""]
    async with running() as app, worker(app, tmp_path) as (_, client, _):
        for body in bodies:
            one, other = [await each.post("/classify", content=body) for each in (app.client, client)]
            found = [(answer.status_code, answer.json()) for answer in (one, other)]
            for _, document in found:
                document.pop("request_id")
            assert found[0] == found[1]
        listed = [(await each.get("/v1/models")).json() for each in (app.client, client)]
        assert listed[0] == listed[1]


async def test_a_full_queue_refuses_through_the_worker(running: Any, kit: ModuleType, tmp_path: Path) -> None:
    settings = {"max_queue_images": 1, "max_images_per_request": 1}
    async with running(settings=settings) as app, worker(app, tmp_path) as (_, client, _):
        app.model.gate.clear()
        computing = asyncio.create_task(client.post("/classify", content=kit.encoded()))
        await kit.entered(app.model)
        waiting = asyncio.create_task(client.post("/classify", content=kit.encoded(seed=1)))
        await kit.until(lambda: app.service.batcher.depth == 1)
        refused = await client.post("/classify", content=kit.encoded(seed=2))
        assert error(refused) == (503, "overloaded")
        assert "1 images wait, 1 more exceed the limit 1" in refused.json()["error"]["message"]
        assert int(refused.headers["retry-after"]) >= 1
        streamed = await client.post(
            "/classify", content=kit.encoded(seed=2), headers={"accept": "application/x-ndjson"}
        )
        assert error(streamed) == (503, "overloaded")  # before the first line
        app.model.gate.set()
        assert [answer.status_code for answer in await asyncio.gather(computing, waiting)] == [200, 200]


async def test_a_deadline_that_passes_frees_the_queue(running: Any, kit: ModuleType, tmp_path: Path) -> None:
    async with running() as app, worker(app, tmp_path) as (front, client, _):
        app.model.gate.clear()
        computing = asyncio.create_task(client.post("/classify", content=kit.encoded()))
        await kit.entered(app.model)
        late = client.post("/classify", content=kit.encoded(seed=1), headers={"x-request-timeout-ms": "700"})
        assert error(await late) == (504, "deadline")
        await kit.until(lambda: app.service.batcher.depth == 0)
        app.model.gate.set()
        assert (await computing).status_code == 200
        assert not front._waiting
        assert not front._id_of


async def test_a_model_in_a_workers_hands_is_not_let_go(running: Any, kit: ModuleType, tmp_path: Path) -> None:
    async with running() as app, worker(app, tmp_path) as (front, client, _):
        old = app.service.models["held"]

        def again(name: str, path: Path, settings: Any) -> ServedModel:
            config = dataclasses.replace(kit.make_config(), files={"model.safetensors": "2" * 64})
            return ServedModel.of(name, config, kit.make_pipeline(kit.HeldModel()), image_limits(settings), 8)

        app.service.rollout._open_model = again
        with front.using(front.models["held"]):
            new = await app.service.rollout.bring_in("held", Path("x"), "2")
            await kit.until(lambda: front.models["held"].version == new.version)
            await asyncio.sleep(0.05)
            assert old.key in app.service.batcher._lines
        await app.service.rollout.settled()
        assert old.key not in app.service.batcher._lines
        assert (await client.post("/classify", content=kit.encoded())).json()["version"] == new.version


async def test_a_worker_that_goes_leaves_nothing_behind(running: Any, kit: ModuleType, tmp_path: Path) -> None:
    async with running() as app:
        app.model.gate.clear()
        async with worker(app, tmp_path) as (front, client, hub):
            computing = asyncio.create_task(client.post("/classify", content=kit.encoded()))
            await kit.entered(app.model)
            waiting = asyncio.create_task(client.post("/classify", content=kit.encoded(seed=1)))
            await kit.until(lambda: app.service.batcher.depth == 1)
            await front.stop()
            answers = await asyncio.gather(computing, waiting)
            assert {error(answer) for answer in answers} == {(503, "not_ready")}
            await kit.until(lambda: app.service.batcher.depth == 0 and hub.workers == 0)
            assert not app.service._tickets
            assert not app.service.rollout._in_hand
            assert error(await client.post("/classify", content=kit.encoded())) == (503, "not_ready")
        app.model.gate.set()


async def test_counts_of_a_worker_last_when_it_has_gone(running: Any, kit: ModuleType, tmp_path: Path) -> None:
    def counted(hub: Hub) -> float:
        return hub.registry.get_sample_value("milkweed_images_total", {"model": "held", "outcome": "ok"}) or 0.0

    async with running() as app, worker(app, tmp_path) as (front, client, hub):
        for seed in range(3):
            await client.post("/classify", content=kit.encoded(seed=seed))
        assert await asyncio.to_thread(counted, hub) == 3
        assert (await front.statistics())["held"].images == 3
        await client.post("/classify", content=kit.encoded())
        await front.stop()  # which reports
        await kit.until(lambda: hub.workers == 0)
        assert await asyncio.to_thread(counted, hub) == 4
