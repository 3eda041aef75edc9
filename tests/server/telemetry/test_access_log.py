"""The access log: a share of requests, all that fail by our fault, and nothing in it that a client wrote."""

import json
import logging
from typing import Any

import pytest

from milkweed.server.telemetry.logs import JsonFormatter
from milkweed.server.telemetry.metrics import STAGES

from ...support.server_parts import Start, encoded


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    """The lines so far, as a reader of the log gets them."""
    caplog.set_level(logging.INFO, "milkweed.access")
    return lambda: [
        json.loads(JsonFormatter().format(record)) for record in caplog.records if record.name == "milkweed.access"
    ]


async def test_a_line_tells_request_and_stages(running: Start, lines: Any) -> None:
    async with running(settings={"access_log": 1.0}) as app:
        files = [("i", ("a", encoded(seed=seed), "image/png")) for seed in range(3)]
        answer = await app.classify(files=files)
    [line] = lines()
    assert (line["level"], line["message"]) == ("info", "POST /classify 200")
    assert line["request_id"] == answer.headers["x-request-id"]
    assert "trace_id" not in line
    event = line["event"]
    stages = event.pop("stages_ms")
    total = event.pop("total_ms")
    assert event == {
        "method": "POST",
        "route": "/classify",
        "status": 200,
        "code": None,
        "model": "held",
        "images": 3,
        "body_bytes": int(answer.request.headers["content-length"]),
        "caller": "127.0.0.1",
    }
    assert list(stages) == list(STAGES)
    assert sum(stages.values()) == pytest.approx(total, abs=0.01)


async def test_a_line_holds_nothing_that_a_client_wrote(running: Start, lines: Any) -> None:
    async with running(settings={"access_log": 1.0}) as app:
        headers = {"x-request-id": "two words", "user-agent": "secret", "x-forwarded-for": "secret"}
        await app.client.request("BREW", "/secret%1b%5b2J?secret=1", headers=headers)
    [line] = lines()
    assert "secret" not in json.dumps(line)
    assert "two words" not in json.dumps(line)
    assert (line["event"]["method"], line["event"]["route"]) == ("other", "other")


async def test_internal_errors_are_always_logged(running: Start, lines: Any) -> None:
    async with running(settings={"access_log": 1e-9}) as app:
        await app.classify()
        await app.classify(b"no picture")
        app.model.failure = RuntimeError("broken")
        await app.classify()
        app.service.stop_accepting()
        refused = await app.classify()
        assert refused.status_code == 503
        assert (await app.client.get("/readyz")).status_code == 503
    assert [(line["event"]["status"], line["event"]["code"]) for line in lines()] == [(500, "internal")]


async def test_nothing_is_logged_where_the_log_is_off(running: Start, lines: Any) -> None:
    async with running() as app:
        app.model.failure = RuntimeError("broken")
        assert (await app.classify()).status_code == 500
    assert lines() == []
