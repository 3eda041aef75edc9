"""Tests who is let in: keys over HTTP, limits, open paths, and what the answers say."""

from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import patch
from urllib.parse import unquote

import httpx
import pytest
from fastapi import FastAPI

from milkweed.server.security.keys import key_block, new_key

from ...support.raw_call import RawCall
from ...support.server_parts import Running, Start, check_error, encoded, one_reason, running_app

KEY = new_key()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    path.write_text(
        key_block("camera", KEY)
        + key_block("slow", "slow-key")
        + "requests_per_second = 0.1\nrequest_burst = 2\nimages_per_second = 1.0\n"
    )
    return path


@pytest.fixture(scope="module")
async def module_app(keys: Path, anyio_backend: str) -> AsyncIterator[Running]:
    async with running_app(settings={"api_keys": str(keys)}) as app:
        yield app


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    "headers", [bearer(KEY), {"authorization": f"bearer  {KEY} "}, {"x-api-key": KEY}, {"X-API-Key": KEY}]
)
async def test_a_key_in_any_accepted_header_admits(app: Running, headers: dict[str, str]) -> None:
    before = app.value("caller_requests_total", caller="camera")
    assert (await app.classify(headers=headers)).status_code == 200
    assert app.value("caller_requests_total", caller="camera") == before + 1


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({}, "an API key is needed"),
        ({"authorization": "Basic eDp5"}, "an API key is needed"),
        ({"authorization": "Bearer"}, "an API key is needed"),
        (bearer(""), "not known"),
        (bearer("mw_wrong"), "not known"),
        (bearer(KEY[:-1]), "not known"),
        (bearer("x" * 5000), "not known"),
        ({"x-api-key": "wrong"}, "not known"),
        ({"authorization": "Bearer wrong", "x-api-key": KEY}, "not known"),
    ],
)
@pytest.mark.parametrize("path", ["/classify", "/v1/models", "/metrics", "/nowhere", "/livez/x"])
async def test_a_missing_or_wrong_key_is_401(app: Running, headers: dict[str, str], words: str, path: str) -> None:
    async with one_reason(app, "unauthorized"):
        answer = await app.client.post(path, content=encoded(), headers=headers)
    check_error(answer, 401, "unauthorized", words)
    assert answer.headers["www-authenticate"] == 'Bearer realm="milkweed"'
    assert KEY[:-1] not in answer.text


async def test_probes_and_pages_need_no_key(running: Start, app: Running, keys: Path) -> None:
    for path in ("/livez", "/readyz", "/health", "/startupz", "/", "/page/main.js", "/docs", "/openapi.json"):
        assert (await app.client.get(path)).status_code == 200
    async with running(settings={"api_keys": str(keys), "metrics_without_key": True}) as open_metrics:
        assert (await open_metrics.client.get("/metrics")).status_code == 200
    async with running() as without_keys:
        assert (await without_keys.client.get("/v1/models")).status_code == 200


async def test_requests_beyond_the_rate_are_429_with_retry_after(app: Running) -> None:
    for _ in range(2):
        assert (await app.client.get("/v1/models", headers=bearer("slow-key"))).status_code == 200
    async with one_reason(app, "rate_limited"):
        answer = await app.client.get("/v1/models", headers=bearer("slow-key"))
    check_error(answer, 429, "rate_limited", "0.1 requests a second", "2 at once")
    assert answer.headers["retry-after"] == "10"
    assert app.value("caller_requests_total", caller="slow") == 3
    assert app.value("caller_refusals_total", caller="slow", limit="requests") == 1
    assert (await app.client.get("/v1/models", headers=bearer(KEY))).status_code == 200


async def test_the_queue_learns_the_caller_or_the_address(running: Start, app: Running) -> None:
    async def caller(asked: Running, headers: dict[str, str]) -> str:
        queue = asked.service.scheduler
        with patch.object(queue, "submit", wraps=queue.submit) as submit:
            await asked.classify(headers=headers)
        return str(submit.call_args.args[0].caller)

    async with running() as without_keys:
        assert [await caller(app, bearer(KEY)), await caller(without_keys, {})] == ["camera", "127.0.0.1"]


async def test_every_answer_forbids_sniffing(app: Running) -> None:
    for answer in (
        await app.classify(headers=bearer(KEY)),
        await app.classify(b"<script>alert(1)</script>", headers=bearer(KEY)),
        await app.client.get("/nowhere", headers=bearer(KEY)),
        await app.client.get("/docs"),
    ):
        assert answer.headers["x-content-type-options"] == "nosniff"


async def test_document_and_page_of_the_api_say_where_a_key_is_needed_and_load_nothing(
    running: Start, app: Running
) -> None:
    document, page = (await app.client.get("/openapi.json")).json(), await app.client.get("/docs")
    classify = document["paths"]["/classify"]["post"]
    assert classify["security"] == [{"bearer": []}, {"header": []}]
    assert {"401", "408", "429", "431"} <= set(classify["responses"])
    assert "security" not in document["paths"]["/livez"]["get"]
    assert set(document["components"]["securitySchemes"]) == {"bearer", "header"}
    async with running(wait=False) as without_keys:
        document = (await without_keys.client.get("/openapi.json")).json()
    assert "401" not in document["paths"]["/classify"]["post"]["responses"]
    assert page.headers["content-security-policy"].startswith("default-src 'none'; ")
    for words in ("<script", "src=", "http://", "https://"):
        assert words not in page.text
    for words in (
        "/classify",
        "/v1/models",
        "multipart/form-data",
        "ClassifyAnswer",
        "top_k",
        "503",
        "Needs an API key",
    ):
        assert words in page.text


SPELLINGS = r"""
/v1/models/ //v1/models /v1//models /V1/models /./v1/models /x/../v1/models /v1/models;x /livez/../v1/models
/page/../v1/models /page/%2e%2e/v1/models /page/..%2fv1%2fmodels /page//v1/models /v1%2fmodels /v1/%6dodels
%2fv1/models /livez%2f..%2fv1%2fmodels /v1/models%20 /v1/models%2f /livez?/v1/models /livez%3f/../v1/models
/v1\models /%2fv1/models /docs/../metrics /page/%2fmetrics
"""


@pytest.mark.parametrize("target", SPELLINGS.split())
async def test_no_other_spelling_opens_what_needs_a_key(app: Running, target: str) -> None:
    """Each of these is refused, unless it is a path that is open to everybody."""
    path = unquote(target.partition("?")[0])
    call = RawCall(app, method="GET", path=path)
    await call.task
    sent = [call.sent.get_nowait() for _ in range(call.sent.qsize())]
    body = b"".join(message.get("body", b"") for message in sent)
    assert (sent[0]["status"] == 200) == (path == "/livez"), body
    assert b'"models"' not in body
    assert b"milkweed_" not in body


@pytest.mark.parametrize("prefix", ["/models", "/page", "/livez", "/page/x", "/v1"])
async def test_a_prefix_changes_nothing_about_which_paths_need_a_key(app: Running, prefix: str) -> None:
    """A path that needs a key must not look like an open one behind `outer.mount(prefix, app)`."""

    def count(route: str, method: str, code: str) -> float:
        return app.value("http_request_duration_seconds_count", route=route, method=method, code=code)

    before = count("/livez", "GET", "200"), count("/classify", "POST", "415")
    outer = FastAPI()
    outer.mount(prefix, app.app)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=outer), base_url="http://outer") as client:
        for path in ("/livez", "/readyz", "/v2/health/ready", "/", "/page/main.js", "/docs"):
            assert (await client.get(prefix + path)).status_code == 200, path
        for path in ("/v1/models", "/metrics", "/v2/models/x", "/nowhere", "/livez/x"):
            assert (await client.get(prefix + path)).status_code == 401, path
            assert (await client.get(prefix + path, headers=bearer(KEY))).status_code in (200, 404), path
        answer = await client.post(prefix + "/classify", content=b"no image", headers=bearer(KEY))
        assert answer.json()["error"]["code"] == "unsupported_format"
        assert (await client.post(prefix + "/classify", content=b"no image")).status_code == 401
        missing = await client.get(prefix + "/v2/models/x", headers=bearer(KEY))
        assert isinstance(missing.json()["error"], str)  # in the protocol's form
    assert (count("/livez", "GET", "200"), count("/classify", "POST", "415")) == (before[0] + 1, before[1] + 1)
