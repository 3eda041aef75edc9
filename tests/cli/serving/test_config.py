"""Tests `milkweed config` and `milkweed keys`: settings in force, all that is wrong, files that can be read back."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milkweed.cli.serving.config import toml_value
from milkweed.server.config.settings import Settings
from milkweed.server.config.sources import load_settings
from milkweed.server.security.keys import hash_key, key_block, parse_keys

from ...support.command import Milkweed, Refused


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "milkweed.toml"
    path.write_text("port = 1001\ntop_k = 3\n")
    return path


def test_show_says_where_each_value_is_from(milkweed: Milkweed, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILKWEED_TOP_K", "4")
    monkeypatch.setenv("milkweed_lanes", "2")
    document = milkweed("config", "show", "--config", file, "--max-batch-size", "7", "--json").document
    assert set(document) == set(Settings.model_fields)
    assert document["port"] == {"value": 1001, "from": str(file)}
    assert document["top_k"] == {"value": 4, "from": "MILKWEED_TOP_K"}
    assert document["lanes"] == {"value": 2, "from": "MILKWEED_LANES"}
    assert document["max_batch_size"] == {"value": 7, "from": "--max-batch-size"}
    assert document["host"] == {"value": "127.0.0.1", "from": "default"}
    text = milkweed("config", "show", "--config", file).out
    assert [line.split() for line in text.splitlines() if line.startswith("top_k")] == [
        ["top_k", "4", "MILKWEED_TOP_K"]
    ]


def test_toml_can_be_fed_back(milkweed: Milkweed, file: Path, tmp_path: Path) -> None:
    arguments = ("--tuning-cache", 'a "b" \\ ü', "--drain-seconds", "0.25", "--formats", "png,jpeg2000")
    shown = milkweed("config", "show", "--config", file, "--toml", *arguments).out
    again = tmp_path / "again.toml"
    again.write_text(shown)
    assert load_settings({}, again) == load_settings(
        {"tuning_cache": 'a "b" \\ ü', "drain_seconds": "0.25", "formats": "png,jpeg2000"}, file
    )


@given(st.text() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.booleans())
def test_plain_values_survive_toml(value: Any) -> None:
    if isinstance(value, str) and any(0xD800 <= ord(char) <= 0xDFFF for char in value):
        return  # no text
    found = tomllib.loads(f"x = {toml_value(value)}")["x"]
    assert found == value
    assert type(found) is type(value)


def test_check_tells_all_that_is_wrong(milkweed: Milkweed, tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text('port = 99999\ntop_k = 0\nno_such = 1\ndevice = "tpu"\n')
    ran = milkweed("config", "check", file)
    assert (ran.code, ran.out) == (1, "")
    lines = ran.err.splitlines()
    assert len(lines) == 4
    for line, name in zip(sorted(lines), ("device", "no_such", "port", "top_k"), strict=True):
        assert line.startswith(f"milkweed: error: {file}: {name} = ")


def test_check_tells_contradictions_and_wrong_files(milkweed: Milkweed, tmp_path: Path) -> None:
    ran = milkweed("config", "check", "--port", "9", "--metrics-port", "9", "--tls-key", "x")
    assert ran.code == 1
    assert "port and metrics_port are both 9" in ran.err
    assert "tls_key = 'x' needs tls_cert" in ran.err
    keys = tmp_path / "keys.toml"
    keys.write_text('[[key]]\nname = "a"\nsha256 = "mw_secret"\n')
    ran = milkweed("config", "check", "--api-keys", keys, "--tls-cert", "/no/such.pem")
    assert ran.code == 1
    assert len(ran.err.splitlines()) == 2
    assert "tls_cert /no/such.pem: No such file" in ran.err
    assert "mw_secret" not in ran.err


def test_check_accepts_what_is_right(
    milkweed: Milkweed, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(key_block("a", "k"))
    monkeypatch.setenv("MILKWEED_TOPK", "3")
    monkeypatch.setenv("MILKWEED_PDL", "0")  # no setting either, but the kernels read it
    ran = milkweed("config", "check", file, "--api-keys", keys)
    assert (ran.code, ran.out) == (0, "the settings are right\n")
    warning = "MILKWEED_TOPK: there is no such setting; it has no effect; did you mean top_k?"
    assert ran.err == f"milkweed: warning: {warning}\n"


def test_what_files_hold_is_never_shown(milkweed: Milkweed, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(key_block("a", "k"))
    for form in ("--json", "--toml"):
        out = milkweed("config", "show", "--api-keys", keys, form).out
        assert str(keys) in out
        assert hash_key(b"k").hex() not in out


def test_a_new_key_is_an_entry_and_a_secret(milkweed: Milkweed) -> None:
    ran = milkweed("keys", "new", "cam-1").ok()
    [caller] = parse_keys(tomllib.loads(ran.out)).values()
    key = ran.err.split()[-1]
    assert (caller.name, caller.digests) == ("cam-1", (hash_key(key.encode()),))
    assert key not in ran.out
    document = milkweed("keys", "new", "cam-1", "--json").document
    assert document["sha256"] == hash_key(document["key"].encode()).hex()
    assert document["key"] != key


@pytest.mark.parametrize("name", ["", "a b", "-a", "ü", "a" * 65, 'a"'])
def test_keys_new_refuses_a_name_that_cannot_be(refused: Refused, name: str) -> None:
    assert refused("keys", "new", "--", name, code=2).startswith(f"NAME {name!r}: must be")
