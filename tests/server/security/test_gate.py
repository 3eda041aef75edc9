"""Who is let in: keys over HTTP, limits, what is open, and what the answers say."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from milkweed.server.security.keys import key_block, new_key

pytestmark = pytest.mark.anyio

KEY = new_key()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(
        key_block("camera", KEY)
        + key_block("slow", "slow-key")
        + "requests_per_second = 0.1\nrequest_burst = 2\nimages_per_second = 1.0\n"
    )
    return path


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    "headers", [bearer(KEY), {"authorization": f"bearer  {KEY} "}, {"x-api-key": KEY}, {"X-API-Key": KEY}]
)
async def test_a_key_lets_in(running: Any, kit: ModuleType, keys: Path, headers: dict[str, str]) -> None:
    async with running(settings={"api_keys": str(keys)}) as app:
        answer = await app.client.post("/classify", content=kit.encoded(), headers=headers)
        assert answer.status_code == 200
        assert app.value("caller_requests_total", caller="camera") == 1


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
@pytest.mark.parametrize("path", ["/classify", "/v1/models", "/metrics", "/nowhere", "/livez/"])
async def test_without_one_it_is_401(
    running: Any, kit: ModuleType, keys: Path, headers: dict[str, str], words: str, path: str
) -> None:
    async with running(settings={"api_keys": str(keys)}, wait=False) as app, kit.one_reason(app, "unauthorized"):
        answer = await app.client.post(path, content=kit.encoded(), headers=headers)
    kit.check_error(answer, 401, "unauthorized", words)
    assert answer.headers["www-authenticate"] == 'Bearer realm="milkweed"'
    assert KEY[:-1] not in answer.text


async def test_probes_and_pages_need_none(running: Any, keys: Path) -> None:
    async with running(settings={"api_keys": str(keys)}) as app:
        for path in ("/livez", "/readyz", "/startupz", "/", "/page/main.js", "/docs", "/openapi.json"):
            assert (await app.client.get(path)).status_code == 200
    async with running(settings={"api_keys": str(keys), "metrics_without_key": True}) as app:
        assert (await app.client.get("/metrics")).status_code == 200
    async with running() as app:
        assert (await app.client.get("/v1/models")).status_code == 200


async def test_beyond_the_rate_it_is_429_with_retry_after(running: Any, kit: ModuleType, keys: Path) -> None:
    async with running(settings={"api_keys": str(keys)}) as app:
        for _ in range(2):
            assert (await app.client.get("/v1/models", headers=bearer("slow-key"))).status_code == 200
        async with kit.one_reason(app, "rate_limited"):
            answer = await app.client.get("/v1/models", headers=bearer("slow-key"))
        kit.check_error(answer, 429, "rate_limited", "0.1 requests a second", "2 at once")
        assert answer.headers["retry-after"] == "10"
        assert app.value("caller_requests_total", caller="slow") == 3
        assert app.value("caller_refusals_total", caller="slow", limit="requests") == 1
        assert (await app.client.get("/v1/models", headers=bearer(KEY))).status_code == 200


async def test_who_asks_is_in_the_scope(running: Any, kit: ModuleType, keys: Path) -> None:
    seen: list[Any] = []
    async with running(settings={"api_keys": str(keys)}) as app:
        submit = app.service.submit
        app.service.submit = lambda ticket, *rest: (seen.append(ticket.source), submit(ticket, *rest))[1]
        await app.client.post("/classify", content=kit.encoded(), headers=bearer(KEY))
    async with running() as app:
        submit_open = app.service.submit
        app.service.submit = lambda ticket, *rest: (seen.append(ticket.source), submit_open(ticket, *rest))[1]
        await app.client.post("/classify", content=kit.encoded())
    assert seen == ["camera", "127.0.0.1"]


async def test_images_are_charged_to_who_sends_them(running: Any, keys: Path) -> None:
    from milkweed.server.errors import ServiceError

    async with running(settings={"api_keys": str(keys)}, wait=False) as app:
        gate = app.app.state.gate
        account = gate.identify({b"x-api-key": b"slow-key"})
        gate.charge_images(account, 1)
        with pytest.raises(ServiceError) as caught:
            gate.charge_images(account, 1)
        assert (caught.value.code, caught.value.retry_after_seconds) == ("rate_limited", 1)
        assert app.value("caller_refusals_total", caller="slow", limit="images") == 1
        gate.charge_images(None, 1000)


async def test_every_answer_forbids_sniffing(running: Any, kit: ModuleType) -> None:
    async with running() as app:
        for answer in (
            await app.client.post("/classify", content=kit.encoded()),
            await app.client.post("/classify", content=b"<script>alert(1)</script>"),
            await app.client.get("/nowhere"),
            await app.client.get("/docs"),
        ):
            assert answer.headers["x-content-type-options"] == "nosniff"


async def test_the_api_page_loads_nothing(running: Any) -> None:
    async with running() as app:
        page = await app.client.get("/docs")
    assert page.headers["content-security-policy"].startswith("default-src 'none'; ")
    for words in ("<script", "src=", "http://", "https://"):
        assert words not in page.text
    for words in ("/classify", "/v1/models", "multipart/form-data", "ClassifyAnswer", "top_k", "503"):
        assert words in page.text


async def test_the_document_says_where_a_key_is_needed(running: Any, keys: Path) -> None:
    async with running(settings={"api_keys": str(keys)}, wait=False) as app:
        document = (await app.client.get("/openapi.json")).json()
        page = (await app.client.get("/docs")).text
    classify = document["paths"]["/classify"]["post"]
    assert classify["security"] == [{"bearer": []}, {"header": []}]
    assert {"401", "408", "429", "431"} <= set(classify["responses"])
    assert "security" not in document["paths"]["/livez"]["get"]
    assert set(document["components"]["securitySchemes"]) == {"bearer", "header"}
    assert "Needs an API key" in page
    async with running(wait=False) as app:
        document = (await app.client.get("/openapi.json")).json()
    assert "401" not in document["paths"]["/classify"]["post"]["responses"]
