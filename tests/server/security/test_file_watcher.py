"""Files that change while the server runs are read again; a broken one leaves what was there before in force."""

import threading
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge

from milkweed.server.security.file_watcher import FileWatcher
from milkweed.server.security.key_store import KeyStore
from milkweed.server.security.keys import key_block

from ...support.waiting import HANG_SECONDS


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def watcher(registry: CollectorRegistry) -> FileWatcher:
    return FileWatcher(Gauge("failing", "x", ("file",), registry=registry))


def failing(registry: CollectorRegistry, file: str = "api_keys") -> float | None:
    return registry.get_sample_value("failing", {"file": file})


def watching_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "milkweed-files"]


def test_a_changed_file_is_read_again_and_a_broken_or_missing_one_changes_nothing(
    tmp_path: Path, watcher: FileWatcher, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(key_block("a", "one"))
    store = KeyStore(path)
    watcher.add("api_keys", [path], store.reload)
    assert store.find(b"one")
    watcher.check()
    assert not caplog.records

    path.write_text("broken")
    for _ in range(3):
        watcher.check()
    assert store.find(b"one")
    assert failing(registry) == 1
    assert [record.levelname for record in caplog.records] == ["ERROR"]  # once, not each second

    path.unlink()
    watcher.check()
    watcher.check()
    assert store.find(b"one")
    assert len(caplog.records) == 2

    (tmp_path / "new").write_text(key_block("a", "two"))
    (tmp_path / "new").rename(path)  # as mounted secrets change: another inode under the name
    watcher.check()
    assert (store.find(b"one"), failing(registry)) == (None, 0)
    assert store.find(b"two")


def test_a_file_that_crashes_its_reader_fails_alone(
    tmp_path: Path, watcher: FileWatcher, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    read: list[str] = []
    for name in ("tls", "api_keys"):
        (tmp_path / name).write_text("1")

    def crash() -> None:
        if (tmp_path / "tls").read_text() != "1":
            raise RuntimeError("of a library")

    watcher.add("tls", [tmp_path / "tls"], crash)
    watcher.add("api_keys", [tmp_path / "api_keys"], lambda: read.append((tmp_path / "api_keys").read_text()))
    for name in ("tls", "api_keys"):
        (tmp_path / name).write_text("22")
    watcher.check()
    assert read == ["1", "22"]
    assert (failing(registry, "tls"), failing(registry)) == (1, 0)
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [RuntimeError]


def test_a_link_that_points_elsewhere_is_a_change(tmp_path: Path, watcher: FileWatcher) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "keys").write_text(key_block("a", name))
    link = tmp_path / "data"
    link.symlink_to("one")
    store = KeyStore(link / "keys")
    watcher.add("api_keys", [store.file], store.reload)
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").rename(link)
    watcher.check()
    assert store.find(b"two")
    assert store.find(b"one") is None


def test_without_files_there_is_no_thread(watcher: FileWatcher) -> None:
    watcher.start()
    assert watching_threads() == []
    watcher.stop()


def test_the_thread_looks_by_itself_and_ends(
    tmp_path: Path, watcher: FileWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("milkweed.server.security.file_watcher.LOOK_SECONDS", 0.01)
    path, seen = tmp_path / "f", threading.Event()
    path.write_text("1")
    watcher.add("api_keys", [path], lambda: seen.set() if path.read_text() == "22" else None)
    watcher.start()
    assert len(watching_threads()) == 1
    path.write_text("22")
    assert seen.wait(HANG_SECONDS)
    watcher.stop()
    assert watching_threads() == []
