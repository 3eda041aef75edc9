"""API keys of a running server: changed in place, and what it says when the file is wrong."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from milkweed.client import Client, MilkweedError
from milkweed.server.security.keys import key_block


def test_keys_change_while_it_runs(serving: Any, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(key_block("a", "one"))
    with serving(api_keys=path) as server, httpx.Client(timeout=20) as client:
        url = server.wait_ready()

        def status(key: str) -> int:
            return client.get(url + "/v1/models", headers={"x-api-key": key}).status_code

        assert (status("one"), status("two")) == (200, 401)
        path.write_text(key_block("a", "one") + key_block("a", "two"))
        while status("two") != 200:  # a look a second
            pass
        assert status("one") == 200
        path.write_text("broken [")
        server.wait_log("the old one stays in force")
        assert (status("one"), status("two")) == (200, 200)
        path.write_text(key_block("a", "two"))
        while status("one") != 401:
            pass
        assert client.get(url + "/livez").status_code == 200
        server.terminate()
        assert server.exit() == 0


def test_a_wrong_file_stops_the_start_in_one_line(serving: Any, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text('[[key]]\nname = "a"\nsha256 = "mw_plain"\n')
    with serving(api_keys=path) as server:
        assert server.exit() == 1
        [line] = server.log
    assert line.startswith(f"milkweed: error: API keys {path}: key 1 (a): sha256 must be 64 digits")
    assert "mw_plain" not in line


def test_the_client_sends_the_key_in_the_environment(
    serving: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(key_block("a", "one"))
    with serving(api_keys=path) as server:
        url = server.wait_ready()
        for key, code in (("one", "unsupported_format"), ("other", "unauthorized")):
            monkeypatch.setenv("MILKWEED_API_KEY", key)
            with Client(url) as client, pytest.raises(MilkweedError) as caught:
                client.classify(b"no image")
            assert caught.value.code == code
