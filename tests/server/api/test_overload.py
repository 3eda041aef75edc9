"""What is refused for load, time or the service's state: full queues, deadlines, clients gone, faults, draining."""

import asyncio
import time

import httpx
import pytest

from milkweed.inference.results import SCORE_BYTES

from ...support.raw_call import RawCall
from ...support.server_parts import Running, Start, calm, check_error, encoded, entered, one_reason, until
from ..oip.rest_client import infer

JSON = {"content-type": "application/json"}


async def test_full_queue_is_503_with_retry_after(running: Start) -> None:
    settings = {"max_queue_images": 2, "max_images_per_request": 2}
    async with running(settings=settings) as app:
        first = await app.hold()
        waiting = [app.begin() for _ in range(2)]
        await until(lambda: app.service.scheduler.depth == 2)
        async with one_reason(app, "overloaded"):
            refused = await app.classify()
        check_error(refused, 503, "overloaded", "2 images wait", "limit 2")
        assert int(refused.headers["retry-after"]) >= 1
        app.model.gate.set()
        assert [answer.status_code for answer in await asyncio.gather(first, *waiting)] == [200] * 3
        assert app.value("images_total", model="held", outcome="rejected") == 1


async def test_bodies_in_memory_are_bounded(running: Start) -> None:
    image = encoded()
    cost = len(image) + 5 * SCORE_BYTES
    settings = dict.fromkeys(("max_held_bytes", "max_body_bytes", "max_image_bytes"), 2 * cost)
    async with running(settings=settings) as app:
        app.model.gate.clear()
        held = [app.begin(image) for _ in range(2)]
        await until(lambda: app.service.body_budget.total == len(held) * cost)
        async with one_reason(app, "overloaded"):
            refused = await app.classify(image)
        check_error(refused, 503, "overloaded", str(2 * cost))
        app.model.gate.set()
        assert {answer.status_code for answer in await asyncio.gather(*held)} == {200}
        assert app.service.body_budget.total == 0


@pytest.mark.parametrize("url", ["/classify", "/v2/models/held/infer"])
async def test_an_answer_counts_before_it_is_computed(running: Start, url: str) -> None:
    """Those of 80 calls for 84,000 scores each were computed and kept together: 358 MB beside a limit of 64 MiB."""
    async with running() as app:
        image, budget = encoded(), app.service.body_budget

        def asked(top_k: int) -> "asyncio.Task[httpx.Response]":
            if url == "/classify":
                return asyncio.create_task(app.client.post(f"{url}?top_k={top_k}", content=image))
            return asyncio.create_task(infer(app, image, top_k=top_k))

        app.model.gate.clear()
        one = asked(1)
        await entered(app.model)
        held = budget.total
        seven = asked(7)
        await until(lambda: budget.total == 2 * held + 6 * SCORE_BYTES)
        budget.limit = budget.total + held + 6 * SCORE_BYTES - 1
        async with one_reason(app, "overloaded"):
            refused = await asked(7)
        assert refused.status_code == 503
        assert f"{7 * SCORE_BYTES} more" in refused.text
        app.model.gate.set()
        assert [answer.status_code for answer in await asyncio.gather(one, seven)] == [200, 200]
        assert budget.total == 0


async def test_deadline_is_504_and_frees_the_queue(running: Start) -> None:
    async with running() as app:
        first = await app.hold()
        calm(app)
        async with one_reason(app, "deadline"):
            late = await app.classify(headers={"X-Request-Timeout-Ms": "500"})
        check_error(late, 504, "deadline", "500 ms")
        assert app.service.scheduler.depth == 0
        assert app.value("images_total", model="held", outcome="expired") == 1
        app.model.gate.set()
        assert (await first).status_code == 200
        assert app.model.sizes == [1]


@pytest.mark.parametrize("path", ["/classify", "/v2/models/held/infer"])
async def test_client_that_leaves_is_dropped_before_the_device(app: Running, path: str) -> None:
    first = await app.hold()
    gone = RawCall(app, encoded(), path=path, headers={"inference-header-content-length": "0"})
    await until(lambda: app.service.scheduler.depth == 1)
    gone.leave.set()
    await gone.task
    assert gone.sent.empty()
    assert app.service.scheduler.depth == 0
    assert app.value("requests_cancelled_total", stage="wait") == 1
    assert app.value("images_total", model="held", outcome="cancelled") == 1
    app.model.gate.set()
    await first
    assert app.model.sizes == [1]


async def test_client_that_leaves_in_its_body_is_counted(app: Running) -> None:
    gone = RawCall(app, b"begin", whole=False)
    gone.leave.set()
    await gone.task
    assert gone.sent.empty()
    assert app.value("requests_cancelled_total", stage="receive") == 1
    assert app.service.body_budget.total == 0


async def test_failed_forward_is_500_without_detail_and_the_next_works(app: Running) -> None:
    app.model.failure = RuntimeError("secret detail")
    async with one_reason(app, "internal"):
        failed = await app.classify()
    app.model.failure = None
    after = await app.classify()
    assert app.value("images_total", model="held", outcome="error") == 1
    check_error(failed, 500, "internal")
    assert "secret" not in failed.text
    assert after.status_code == 200


async def test_unknown_exception_is_500_with_the_request_id_alone(
    app: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise KeyError("secret detail")

    monkeypatch.setattr("milkweed.server.api.classify.read_payload", fail)
    async with one_reason(app, "internal"):
        answer = await app.classify(headers={"X-Request-ID": "me-1"})
    check_error(answer, 500, "internal")
    assert "secret" not in answer.text
    assert any(getattr(record, "request_id", "") == "me-1" and record.exc_info for record in caplog.records)


async def test_draining_refuses_new_and_finishes_old(running: Start) -> None:
    async with running() as app:
        old = await app.hold()
        app.service.begin_drain()
        graced = app.begin()
        await until(lambda: app.service.scheduler.depth == 1)
        app.service.stop_accepting()
        async with one_reason(app, "draining"):
            new = await app.classify()
        check_error(new, 503, "draining")
        assert int(new.headers["retry-after"]) >= 1
        app.model.gate.set()
        finished = await asyncio.gather(old, graced)
    assert [answer.status_code for answer in finished] == [200, 200]
    assert finished[1].headers["connection"] == "close"


async def test_end_of_the_drain_answers_requests_that_are_left(running: Start) -> None:
    async with running() as app:
        stuck = await app.hold()
        waiting = app.begin()
        await until(lambda: app.service.scheduler.depth == 1)
        app.service.abandon()
        for answer in await asyncio.gather(stuck, waiting):
            check_error(answer, 503, "draining")
        assert app.service.scheduler.depth == 0


async def test_late_request_is_refused_before_its_body_is_read(app: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.service.lag, "seconds", lambda: 0.25)
    async with one_reason(app, "overloaded"):
        refused = await app.classify(headers={"X-Request-Timeout-Ms": "400"})
    check_error(refused, 503, "overloaded", "takes 500 ms", "may take 400 ms")
    assert int(refused.headers["retry-after"]) >= 1
    assert (await app.classify()).status_code == 200


async def test_lag_of_the_event_loop_is_seen_while_it_lasts(app: Running) -> None:
    time.sleep(0.3)  # the loop stands still
    assert app.service.lag.seconds() >= 0.15
    await until(lambda: app.service.lag.seconds() < 0.15)
