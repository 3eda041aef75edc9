"""The tuning cache: many processes, broken files, places that cannot be written, presets."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from milkweed.kernels.tuning.cache import FORMAT, TuningCache, device_cache, device_file_name

WRITER = """
import sys
from pathlib import Path
from milkweed.kernels.tuning.cache import TuningCache

cache = TuningCache(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
for i in range(20):
    cache.put(f"{sys.argv[2]}-{i}", {"cuts": "0b0", "engines": ["torch"], "seconds": i})
"""


def entries(path: Path) -> dict[str, object]:
    document = json.loads(path.read_text())
    assert document["format"] == FORMAT
    return document["entries"]


def test_what_is_put_is_found_again_here_and_later(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "cache.json"
    cache = TuningCache(path)
    assert cache.get("a") is None
    cache.put("a", {"x": 1})
    cache.put("b", [2])
    assert cache.get("a") == {"x": 1}
    assert TuningCache(path).get("b") == [2]
    assert entries(path) == {"a": {"x": 1}, "b": [2]}
    assert {p.name for p in path.parent.iterdir()} <= {"cache.json", "cache.json.lock"}


def test_processes_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "cache.json"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "ab"
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    cache = TuningCache(path)
    for i in range(20):
        cache.put(f"c-{i}", i)
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    assert set(entries(path)) == {f"{name}-{i}" for name in "abc" for i in range(20)}


def test_what_another_process_wrote_meanwhile_stays_and_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "cache.json"
    one, other = TuningCache(path), TuningCache(path)
    assert one.get("a") is None
    other.put("a", 1)
    one.put("b", 2)
    assert entries(path) == {"a": 1, "b": 2}
    assert one.get("a") == 1


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is not JSON"),
        (b'{"format": "milkweed-tun', "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[1, 2]", "is not of the form"),
        (b'{"format": "other", "entries": {}}', "is not of the form"),
        (b'{"format": "milkweed-tuning-1", "entries": []}', "is not of the form"),
    ],
)
def test_a_broken_file_is_named_once_ignored_and_rewritten(
    tmp_path: Path, content: bytes, complaint: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cache.json"
    path.write_bytes(content)
    cache = TuningCache(path)
    assert cache.get("a") is None
    assert cache.get("b") is None
    cache.put("a", 1)
    assert entries(path) == {"a": 1}
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(f"tuning cache {path} {complaint}")


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cache.json"
    TuningCache(path).put("a", 1)

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("milkweed.kernels.tuning.cache.os.replace", fail)
    cache = TuningCache(path)
    cache.put("b", 2)
    assert cache.get("b") == 2
    assert entries(path) == {"a": 1}
    assert {p.name for p in tmp_path.iterdir()} <= {"cache.json", "cache.json.lock"}


def test_a_place_that_cannot_be_written_costs_only_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    cache = TuningCache(tmp_path / "file" / "cache.json")
    assert cache.get("a") is None
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    written = [r for r in caplog.records if "cannot be written" in r.getMessage()]
    assert len(written) == 1
    assert str(tmp_path / "file" / "cache.json") in written[0].getMessage()


def test_presets_are_read_and_never_written(tmp_path: Path) -> None:
    preset, own = tmp_path / "preset.json", tmp_path / "own.json"
    preset.write_text(json.dumps({"format": FORMAT, "entries": {"a": "preset", "b": "preset"}}))
    before = preset.read_bytes()
    cache = TuningCache(own, (preset, tmp_path / "missing.json"))
    assert cache.get("a") == "preset"
    cache.put("a", "measured")
    assert cache.get("a") == "measured"
    assert cache.get("b") == "preset"
    assert cache.get("c") is None
    assert entries(own) == {"a": "measured"}
    assert preset.read_bytes() == before


def test_a_device_has_its_file_and_its_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    presets = tmp_path / "presets"
    presets.mkdir()
    (presets / "cpu.json").write_text(json.dumps({"format": FORMAT, "entries": {"a": 1}}))
    monkeypatch.setattr("milkweed.kernels.tuning.cache.PRESETS", presets)
    device = torch.device("cpu")
    assert device_file_name(device) == "cpu.json"
    cache = device_cache(device, tmp_path / "here")
    assert cache.path == tmp_path / "here" / "cpu.json"
    assert cache.get("a") == 1
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    assert device_cache(device).path is None
