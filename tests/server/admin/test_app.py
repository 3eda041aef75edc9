"""Tests who may ask the admin API, and where that is decided."""

import threading
from pathlib import Path

import httpx
import pytest

from milkweed.server.admin.app import create_admin_app
from milkweed.server.security.keys import key_block

from ...support.server_parts import Start


async def test_only_the_admin_key_is_accepted_and_on_the_event_loop(
    running: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a caller has left belongs to the event loop's thread."""
    keys = tmp_path / "keys.toml"
    keys.write_text(key_block("admin", "key") + key_block("camera", "other"))
    threads: list[int] = []
    async with running(settings={"api_keys": str(keys)}) as app:
        gate = app.app.state.auth
        identify = gate.identify
        monkeypatch.setattr(
            gate, "identify", lambda headers: (threads.append(threading.get_ident()), identify(headers))[1]
        )
        transport = httpx.ASGITransport(app=create_admin_app(app.service, gate))
        async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
            for headers, status in (({}, 401), ({"x-api-key": "other"}, 401), ({"x-api-key": "key"}, 200)):
                assert (await client.get("/v1/aliases", headers=headers)).status_code == status
            assert threads == [threading.get_ident()] * 3
            unknown = await client.get("/v1/aliases", headers={"x-api-key": "wrong"})
            assert unknown.headers["www-authenticate"] == 'Bearer realm="milkweed"'
