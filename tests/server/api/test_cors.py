"""Pages of other origins: asked by browsers' preflights, with and without the setting, with API keys on."""

from pathlib import Path

import pytest

from milkweed.server.config.sources import SettingsError, load_settings
from milkweed.server.security.keys import key_block

from ...support.server_parts import Start, encoded

PAGE = "https://page.example"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,x-request-timeout-ms",
}
PATHS = ("/classify", "/v2/models/held/infer")


@pytest.fixture
def keys(tmp_path: Path) -> str:
    (tmp_path / "keys.toml").write_text(key_block("somebody", "a-key"))
    return str(tmp_path / "keys.toml")


@pytest.mark.parametrize(("origins", "allowed"), [(f"http://x:3000,{PAGE}", PAGE), ("*", "*")])
async def test_a_named_origin_may_ask_and_read(running: Start, keys: str, origins: str, allowed: str) -> None:
    async with running(settings={"api_keys": keys, "cors_origins": origins}) as app:
        for path in PATHS:
            preflight = await app.client.options(path, headers=PREFLIGHT)  # which has no key
            assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (200, allowed)
            assert "POST" in preflight.headers["access-control-allow-methods"]
            assert preflight.headers["access-control-allow-headers"] == PREFLIGHT["access-control-request-headers"]
            refused = await app.client.post(path, content=encoded(), headers={"origin": PAGE})
            assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, allowed)
        headers = {"origin": PAGE, "x-api-key": "a-key"}
        answer = await app.client.post("/classify", content=encoded(), headers=headers)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, allowed)
        exposed = answer.headers["access-control-expose-headers"].split(", ")
        assert {"X-Request-ID", "Server-Timing", "Retry-After"} <= set(exposed)
        assert "access-control-allow-credentials" not in answer.headers
        assert (await app.client.options("/v1/models")).status_code == 401  # no preflight


async def test_other_origins_may_not(running: Start, keys: str) -> None:
    other = {**PREFLIGHT, "origin": "https://page.example.evil"}
    async with running(settings={"api_keys": keys, "cors_origins": PAGE}) as app:
        for path in PATHS:
            preflight = await app.client.options(path, headers=other)
            answer = await app.client.post(path, content=encoded(), headers={**other, "x-api-key": "a-key"})
            assert preflight.status_code == 400
            assert "access-control-allow-origin" not in {**preflight.headers, **answer.headers}


async def test_without_the_setting_nothing_of_it_is_there(running: Start, keys: str) -> None:
    async with running(settings={"api_keys": keys}) as app:
        for path in PATHS:
            preflight = await app.client.options(path, headers=PREFLIGHT)
            answer = await app.client.post(path, content=encoded(), headers={**PREFLIGHT, "x-api-key": "a-key"})
            assert (preflight.status_code, answer.status_code) in ((401, 200), (401, 400))
            assert not [name for name in (*preflight.headers, *answer.headers) if name.startswith("access-control")]


@pytest.mark.parametrize(
    "value", ["page.example", "https://page.example/", "https://A.example", "https://a,", "null", ""]
)
def test_what_no_browser_sends_as_an_origin_is_refused(value: str) -> None:
    with pytest.raises(SettingsError, match="--cors-origins"):
        load_settings({"cors_origins": value})
