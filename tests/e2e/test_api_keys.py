"""API keys of a running server change in place, and the client sends the one that the environment has."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from milkweed.client import Client, MilkweedError
from milkweed.server.security.keys import key_block


def test_keys_change_while_it_runs(serving: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(key_block("a", "one"))
    with serving(api_keys=path) as server:
        url = server.wait_ready()

        def known(key: str) -> bool:
            monkeypatch.setenv("MILKWEED_API_KEY", key)
            try:
                with Client(url) as client:
                    return bool(client.models())
            except MilkweedError as error:
                if error.code != "unauthorized":
                    raise
                return False

        assert known("one")
        assert not known("two")
        path.write_text(key_block("a", "one") + key_block("a", "two"))
        while not known("two"):  # a look a second
            pass
        assert known("one")
        path.write_text("broken [")
        server.wait_log("the old one stays in force")
        assert known("one")
        assert known("two")
        path.write_text(key_block("a", "two"))
        while known("one"):
            pass
        assert httpx.get(url + "/livez").status_code == 200
        server.terminate()
        assert server.exit() == 0
