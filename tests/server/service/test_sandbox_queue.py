"""What waits for the sandbox: bounded, in turns, dropped with whoever waited for it, and counted as long as a child
has it."""

import asyncio
import errno
import gc
import subprocess
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from milkweed.loaders.headers.validate import validate
from milkweed.loaders.preprocess.spec import PreprocessSpec
from milkweed.loaders.sandbox.process import Child, DiedError
from milkweed.loaders.sandbox.sandbox import Sandbox
from milkweed.server.config.settings import LOCAL_FORMATS
from milkweed.server.service import sandboxed_images
from milkweed.server.service.caller import Caller, CheckedImage
from milkweed.server.telemetry.context import RequestContext

from ...support import server_parts
from ...support.bodies import as_tensor, files
from ...support.raw_call import RawCall
from ...support.server_parts import SIZE, Running, Start, check_error, one_reason, until
from ...support.waiting import HANG_SECONDS

RARE_TOO = {"formats": LOCAL_FORMATS}
CROP = 3 * SIZE**2


def bmp(side: int) -> bytes:
    return server_parts.encoded("BMP", size=(side, side))


class Turnstile:
    """Stands before the children: each image waits until it is let through, and is noted by its length."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.came: list[int] = []
        self._passes, crop = threading.Semaphore(0), Sandbox.crop

        def held(sandbox: Sandbox, data: bytes, *more: Any) -> Any:
            self.came.append(len(data))
            assert self._passes.acquire(timeout=HANG_SECONDS), "nobody let it through"
            return crop(sandbox, data, *more)

        monkeypatch.setattr(Sandbox, "crop", held)

    def let_through(self, count: int = 1) -> None:
        self._passes.release(count)

    async def has(self, *sides: int) -> None:
        """Wait until exactly these images have come, in this order."""
        await until(lambda: len(self.came) >= len(sides))
        assert self.came == [len(bmp(side)) for side in sides]


@pytest.fixture
def turnstile(monkeypatch: pytest.MonkeyPatch) -> Iterator[Turnstile]:
    """One child, before which images wait."""
    monkeypatch.setattr(sandboxed_images, "MOST_CHILDREN", 1)
    made = Turnstile(monkeypatch)
    yield made
    made.let_through(100)


def waiting(app: Running) -> float:
    return app.value("sandbox_waiting_images")


async def test_what_nobody_waits_for_is_dropped_and_counted_while_a_child_has_it(
    running: Start, turnstile: Turnstile
) -> None:
    async with running(settings=RARE_TOO) as app:
        tasks = [app.begin(bmp(20))]
        await turnstile.has(20)
        tasks += [app.begin(bmp(side)) for side in (30, 31, 32)]
        await until(lambda: waiting(app) == 4)
        assert [thread.name for thread in threading.enumerate()].count("milkweed-sandbox") == 1
        for task in tasks:
            task.cancel()  # as a deadline does
        await asyncio.wait(tasks)
        assert waiting(app) == 1
        assert app.service.body_budget.total == len(bmp(20))  # the child has it, though nobody waits for it
        turnstile.let_through()
        await until(lambda: waiting(app) == 0)
        assert app.service.body_budget.total == 0
        turnstile.let_through()
        assert (await app.classify(bmp(40))).status_code == 200
        await turnstile.has(20, 40)


async def test_a_child_keeps_its_own_image_and_none_beside_it(running: Start, turnstile: Turnstile) -> None:
    async with running(settings=RARE_TOO) as app:
        spec = PreprocessSpec.from_dict(server_parts.MEANS)
        images: list[CheckedImage] = [(bmp(side), validate(bmp(side))) for side in (20, 30, 31)]
        kept = [weakref.ref(image[1]) for image in images if isinstance(image, tuple)]
        with app.service.body_budget.lease() as lease:
            caller = Caller(RequestContext([]), None, lease, lambda count: None)
            decoding = app.service.sandboxed_images.decode(images, spec, caller, 100.0)
            task = asyncio.create_task(decoding)
            await turnstile.has(20)
            task.cancel()
            await asyncio.wait((task,))
        del images, task, decoding, caller
        gc.collect()
        assert [ref() is not None for ref in kept] == [True, False, False]
        turnstile.let_through()
        await until(lambda: waiting(app) == 0)


async def test_requests_take_turns(running: Start, turnstile: Turnstile) -> None:
    async with running(settings=RARE_TOO) as app:
        large = app.begin(files=files(*map(bmp, (20, 21, 22))))
        await turnstile.has(20)
        small = app.begin(bmp(30))
        await until(lambda: waiting(app) == 4)
        turnstile.let_through(2)
        assert (await small).status_code == 200
        await turnstile.has(20, 30, 21)
        turnstile.let_through(2)
        answer = await large
        assert [list(each) for each in answer.json()["results"]] == [["predictions"]] * 3
        await turnstile.has(20, 30, 21, 22)


async def test_who_has_left_is_dropped(running: Start, turnstile: Turnstile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milkweed.server.http.disconnect.WATCH_AFTER_SECONDS", 0)
    async with running(settings=RARE_TOO) as app:
        form = app.client.build_request("POST", "/classify", files=files(*map(bmp, (20, 21, 22))))
        call = RawCall(app, form.read(), headers=form.headers)
        await turnstile.has(20)
        call.leave.set()
        await until(lambda: app.value("requests_cancelled_total", stage="wait") == 1)
        assert waiting(app) == 1
        turnstile.let_through(3)
        await until(lambda: waiting(app) == 0)
        await turnstile.has(20)
        assert app.service.body_budget.total == 0
        call.task.cancel()


@pytest.mark.parametrize(
    ("limits", "bodies", "said"),
    [
        ({"max_queue_images": 6, "max_images_per_request": 6}, 3, "4 images of one caller would wait for the sandbox"),
        ({"max_held_bytes": 20_000, "max_body_bytes": 9000}, 2, "bytes of one caller would wait for the sandbox"),
        ({"max_connections": 16}, 1, "2 requests of one caller would wait for the sandbox: the limit is 1"),
    ],
)
async def test_what_waits_is_bounded(
    running: Start, turnstile: Turnstile, limits: dict[str, int], bodies: int, said: str
) -> None:
    async with running(settings={**RARE_TOO, **limits}) as app:
        first = app.begin(bmp(20))
        await turnstile.has(20)
        async with one_reason(app, "overloaded"):
            refused = await app.classify(files=files(*[bmp(30)] * bodies))
        check_error(refused, 503, "overloaded", said)
        assert int(refused.headers["retry-after"]) >= 1
        assert (await app.classify()).status_code == 200  # a PNG
        assert (await app.client.get("/livez")).status_code == 200
        turnstile.let_through(1 + bodies)
        assert (await first).status_code == 200
        assert (await app.classify(files=files(*[bmp(30)] * bodies))).status_code == 200  # alone it is welcome
        assert app.service.body_budget.total == 0


async def test_an_idle_sandbox_tries_whatever_comes_and_learns(
    running: Start, turnstile: Turnstile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandboxed_images, "FIRST_GUESS_SECONDS", 1000.0)
    async with running(settings=RARE_TOO) as app:
        first = app.begin(bmp(20))
        await turnstile.has(20)
        check_error(await app.classify(bmp(30)), 503, "overloaded", "would take the sandbox", "ms are left")
        turnstile.let_through(100)
        assert (await first).status_code == 200
        for _ in range(60):  # each image takes an eighth of the error away
            assert (await app.classify(bmp(20))).status_code == 200
        both = [app.begin(bmp(20)) for _ in range(2)]
        assert [(await each).status_code for each in both] == [200, 200]


def no_child(*_: Any, **__: Any) -> Any:
    raise OSError(errno.EMFILE, "Too many open files")


def killed(self: Child, *_: bytes) -> None:
    raise DiedError("killed")


async def test_an_error_that_nobody_expected_is_500_at_its_image_and_stops_nothing(
    running: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> Any:
        raise ZeroDivisionError

    async with running(settings=RARE_TOO) as app:
        with monkeypatch.context() as patch:
            patch.setattr(Sandbox, "crop", failing)
            answer = await app.classify(files=files(*[bmp(20)] * 9, server_parts.encoded()))
        codes = [each.get("error", {"code": "ok"})["code"] for each in answer.json()["results"]]
        assert codes == ["internal"] * 9 + ["ok"]
        assert (await app.classify(bmp(20))).status_code == 200


@pytest.mark.parametrize("fault", ["no child starts", "children are killed", "no thread starts"])
async def test_a_fault_of_ours_is_503_at_its_image_alone(
    running: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    png = server_parts.encoded()
    async with running(settings=RARE_TOO) as app:
        (wanted,) = (await app.classify(png)).json()["results"]
        with monkeypatch.context() as patch:
            if fault == "no child starts":
                patch.setattr(subprocess, "Popen", no_child)
            elif fault == "children are killed":
                patch.setattr(Child, "send", killed)
            else:
                start = threading.Thread.start

                def started(thread: threading.Thread) -> None:
                    if thread.name == "milkweed-sandbox":
                        raise RuntimeError("can't start new thread")
                    start(thread)

                patch.setattr(threading.Thread, "start", started)
            for _ in range(3):
                answer = await app.classify(files=files(png, bmp(20), png))
                assert answer.status_code == 200
                first, bad, last = answer.json()["results"]
                assert first == last == wanted
                assert bad["error"]["code"] == "overloaded"
            alone = await app.classify(bmp(20))
            check_error(alone, 503, "overloaded")
            assert alone.headers["retry-after"] == "1"
            inferred = await app.client.post("/v2/models/held/infer", json=as_tensor(png, bmp(20)))
            assert (inferred.status_code, inferred.headers["retry-after"]) == (503, "1")
            assert app.value("images_total", model="held", outcome="invalid") == 0
        assert not [record for record in caplog.records if record.exc_info]
        assert (await app.classify(bmp(20))).status_code == 200
        assert app.service.body_budget.total == 0
