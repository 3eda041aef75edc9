"""Tests the rows, sentences and exit codes of `milkweed doctor`."""

from pathlib import Path
from typing import Any

import pytest

from ...support.command import Milkweed

FREE = ("--port", "0", "--metrics-port", "0")


def rows(ran: Any) -> dict[tuple[str, str], dict[str, str]]:
    return {(row["part"], row["name"]): row for row in ran.document["findings"]}


@pytest.mark.slow_beyond(1)
def test_doctor_passes_a_machine_that_serves(milkweed: Milkweed, bundle: Path) -> None:
    ran = milkweed("doctor", "--bundle", bundle, *FREE, "--device", "cpu", "--json")
    assert ran.code == 0
    assert ran.document["serves"] is True
    found = rows(ran)
    assert str(bundle) in found["would serve", "model"]["text"]
    assert found["would serve", "device"]["text"] == "cpu: device = cpu (--device)"
    assert found["settings", "settings"]["text"] == "right; not by default: port, metrics_port, device"
    for row in ran.document["findings"]:
        assert set(row) == {"part", "name", "status", "text", "fix"}
        assert row["text"]
        assert "\n" not in row["text"]


def test_wrong_settings_are_broken_and_the_machine_is_told_all_the_same(
    milkweed: Milkweed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("top_k = 0\nno_such = 1\n")
    monkeypatch.setenv("MILKWEED_TYPO", "1")
    ran = milkweed("doctor", "--config", file, "--json")
    assert (ran.code, ran.document["serves"]) == (1, False)
    broken = [row["text"] for row in ran.document["findings"] if row["status"] == "broken"]
    assert len(broken) == 2
    assert all(text.startswith(f"{file}: ") for text in broken)
    assert ("machine", "memory") in rows(ran)
    assert "would serve" not in {part for part, _ in rows(ran)}
    assert rows(ran)["settings", "variable"]["text"].startswith("MILKWEED_TYPO: there is no such setting")


def test_doctor_reads_the_files_that_settings_name(milkweed: Milkweed) -> None:
    ran = milkweed("doctor", *FREE, "--tls-cert", "/no/such.pem", "--json")
    assert ran.code == 1
    assert "/no/such.pem" in rows(ran)["settings", "settings"]["text"]
