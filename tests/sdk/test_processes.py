"""Models and clients that are used in another process or event loop than they were made in: an answer, or an error."""

import asyncio
import multiprocessing
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import milkweed
from milkweed.client import AsyncClient, Client, DeadlineExceeded, MilkweedError
from milkweed.inference.pipeline import Pipeline
from milkweed.local import LocalModel

from ..support.fake_server import fake_server
from ..support.server_parts import encoded
from ..support.waiting import HANG_SECONDS
from .client.answering import answer, answers, saying, url

HANGS_SECONDS = 60
IMAGES = [encoded("JPEG", seed=seed, size=(64, 64)) for seed in range(12)]


def in_fork(run: Callable[[], Any]) -> Any:
    """What `run` returns or raises in a process that is forked from this one; fails where it hangs."""
    ours, theirs = multiprocessing.Pipe()

    def child() -> None:
        try:
            theirs.send(run())
        except Exception as error:
            theirs.send((type(error), str(error)))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    theirs.close()
    try:
        assert ours.poll(HANGS_SECONDS), "it hangs"
        return ours.recv()
    finally:
        process.kill()
        process.join()


@pytest.fixture(scope="module")
def model() -> Iterator[LocalModel]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILKWEED_THREADS_PER_IMAGE", "1")
        loaded = milkweed.load("demo")
    with loaded as model:
        model.classify(IMAGES)  # its threads are there
        yield model


def labels(model: LocalModel) -> list[Any]:
    return [answer.predictions for answer in model.classify(IMAGES)]


def test_a_model_answers_in_a_fork_and_ends_there_alone(model: LocalModel) -> None:
    def run() -> list[Any]:
        found = labels(model)
        model.close()
        return found

    assert in_fork(run) == labels(model)
    assert labels(model)


def test_a_model_answers_in_a_fork_that_came_in_the_middle_of_a_call(model: LocalModel) -> None:
    with model._lock(0), model._lock(1):  # as another thread would hold them
        found = in_fork(lambda: labels(model))
    assert found == labels(model)


def test_a_model_that_cannot_be_forked_says_so(model: LocalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pipeline, "survives_fork", False)

    def run() -> None:
        try:
            labels(model)
        finally:
            model.close()

    kind, text = in_fork(run)
    assert kind is MilkweedError
    assert "the model demo was made in another process" in text
    assert labels(model)


@pytest.mark.parametrize(
    ("changes", "survives"),
    [
        ({}, True),
        ({"loader.name": "dali"}, False),
        ({"forward_stage.computes_elsewhere": True}, False),
        ({"plan.threads": 2}, False),
        ({"device.type": "cuda"}, False),
    ],
)
def test_threads_and_devices_of_libraries_do_not_survive(
    model: LocalModel, changes: dict[str, Any], survives: bool
) -> None:
    parts = {"loader.name": "cpu", "forward_stage.computes_elsewhere": False, "plan.threads": 1, "device.type": "cpu"}
    pipeline = object.__new__(Pipeline)
    for path, value in {**parts, **changes}.items():
        part, name = path.split(".")
        setattr(pipeline, part, type("Part", (), {name: value}))
    assert pipeline.survives_fork is survives


def test_a_stream_that_was_begun_before_the_fork_says_so(model: LocalModel) -> None:
    stream = model.stream(IMAGES * 4)
    next(stream)
    kind, text = in_fork(lambda: list(stream))
    assert kind is MilkweedError
    assert "this stream was made in another process" in text
    assert len(list(stream)) == len(IMAGES) * 4 - 1


@pytest.mark.parametrize("used", [True, False])
def test_a_client_answers_in_a_fork_and_ends_there_alone(used: bool) -> None:
    with fake_server(saying(answers([b"dog"]))) as fake, Client(url(fake)) as client:

        def ask() -> Any:
            return client.classify(b"dog")

        def run() -> Any:
            found = ask()
            client.close()
            with pytest.raises(RuntimeError, match="closed"):
                ask()
            return found

        if used:
            assert ask() == answer("dog")
        assert in_fork(run) == ask() == answer("dog")
        assert in_fork(client.close) is None


def test_a_client_keeps_its_timeout_in_a_fork() -> None:
    silent = threading.Event()

    async def wait(number: int, body: bytes) -> bytes:
        while not silent.is_set():
            await asyncio.sleep(0.01)
        return answers([b"dog"])

    with fake_server(wait) as fake, Client(url(fake), timeout=0.3) as client:
        kind, _ = in_fork(lambda: client.classify(b"dog"))
        silent.set()
        assert client.classify(b"dog", timeout=HANG_SECONDS) == answer("dog")
    assert kind is DeadlineExceeded


def test_a_clients_stream_that_was_begun_before_the_fork_says_so() -> None:
    async def say(number: int, body: bytes) -> bytes:
        return answers([b"dog"])

    with fake_server(say) as fake, Client(url(fake), batch_size=1, concurrency=2) as client:
        stream = client.stream([b"dog"] * 6)
        assert next(stream) == answer("dog")
        kind, text = in_fork(lambda: list(stream))
        assert list(stream) == [answer("dog")] * 5
    assert kind is MilkweedError
    assert "this stream was made in another process" in text


def test_what_belongs_to_a_process_cannot_be_sent_to_another(model: LocalModel) -> None:
    with Client("http://nowhere") as client:
        for made, name in ((model, "LocalModel"), (client, "Client"), (AsyncClient("http://nowhere"), "AsyncClient")):
            with pytest.raises(TypeError, match=f"a {name} cannot be sent to another process: make one there"):
                pickle.dumps(made)


def test_an_async_client_answers_in_one_event_loop_after_another() -> None:
    """Each `asyncio.run` closes its connections: warnings of sockets that are left open are errors here."""
    with fake_server(saying(answers([b"dog"]))) as fake:
        client = AsyncClient(url(fake), timeout=HANG_SECONDS)
        for _ in range(3):
            assert asyncio.run(client.classify(b"dog")) == answer("dog")
        asyncio.run(client.close())
        with pytest.raises(RuntimeError, match="the client is closed"):
            asyncio.run(client.classify(b"dog"))


def test_an_async_client_answers_in_several_event_loops_at_once() -> None:
    together = threading.Barrier(4)
    with fake_server(saying(answers([b"dog"]))) as fake:
        client = AsyncClient(url(fake), timeout=HANG_SECONDS)

        async def ask() -> list[Any]:
            found = [await client.classify(b"dog")]
            await asyncio.to_thread(together.wait, HANGS_SECONDS)  # all four loops have connections
            return [*found, *await asyncio.gather(*(client.classify(b"dog") for _ in range(4)))]

        with ThreadPoolExecutor(4) as pool:
            found = [each.result() for each in [pool.submit(asyncio.run, ask()) for _ in range(4)]]
    assert found == [[answer("dog")] * 5] * 4


def test_closing_closes_the_connections_of_other_loops_too() -> None:
    begun, ended = threading.Event(), threading.Event()
    with fake_server(saying(answers([b"dog"]))) as fake:
        client = AsyncClient(url(fake), timeout=HANG_SECONDS)

        async def ask_and_wait() -> bool:
            await client.classify(b"dog")
            http = await client._http()
            begun.set()
            await asyncio.to_thread(ended.wait, HANGS_SECONDS)
            return http.is_closed

        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(asyncio.run, ask_and_wait())
            assert begun.wait(HANGS_SECONDS)
            asyncio.run(client.close())
            ended.set()
            assert other.result() is True
