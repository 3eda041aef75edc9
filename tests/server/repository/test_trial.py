"""A child tries a bundle: what ends, stalls or fills it is one line, and what was being opened is noted."""

import os
import sys
from pathlib import Path

import pytest

from milkweed.inference.device import DeviceError
from milkweed.models.bundle.reading import read_config
from milkweed.models.errors import BundleError
from milkweed.server.config.settings import Settings
from milkweed.server.repository import served_model, trial
from milkweed.server.repository.served_model import open_tried
from milkweed.server.repository.trial import TrialError, noted, try_bundle

from .hostile_bundles import DEMO, HOSTILE, endless_graph, put_graph_bundle

CPU = Settings(device="cpu")


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "milkweed" / "opening"


def child_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str) -> None:
    """Put a program in the place of Python, as which a child would run."""
    file = tmp_path / "python"
    file.write_text(f"#!{sys.executable}\n{program}\n")
    file.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(file))


def test_a_sound_bundle_passes_with_its_version() -> None:
    assert try_bundle("demo", DEMO, CPU) == read_config(DEMO).version


def test_what_a_bundle_is_refused_for_is_said_as_without_a_child(tmp_path: Path) -> None:
    HOSTILE["fewer-labels"][0](tmp_path / "few")
    with pytest.raises(BundleError) as found:
        try_bundle("few", tmp_path / "few", CPU)
    with pytest.raises(BundleError) as plain:
        served_model.open_model("few", tmp_path / "few", CPU)
    assert str(found.value) == str(plain.value)


def test_an_opening_without_an_end_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    put_graph_bundle(tmp_path / "loop", endless_graph())
    with pytest.raises(TrialError, match=r"^model loop cannot be opened: took longer than 2 s$"):
        try_bundle("loop", tmp_path / "loop", Settings(device="cpu", model_load_timeout_seconds=2))
    children = [Path(f"/proc/self/task/{task}/children") for task in os.listdir("/proc/self/task")]
    running = [pid for file in children if file.exists() for pid in file.read_text().split()]
    commands = [Path(f"/proc/{pid}/cmdline") for pid in running]
    assert not [file for file in commands if file.exists() and b"repository.trial" in file.read_bytes()]


@pytest.mark.parametrize(
    ("program", "line"),
    [
        ("import os; os.kill(os.getpid(), 11)", "the process that tried it was ended by SIGSEGV"),
        ("import os; os.abort()", "the process that tried it was ended by SIGABRT"),
        ("import os; os.kill(os.getpid(), 9)", "the process that tried it was ended by SIGKILL"),
        ("raise SystemExit(3)", "the process that tried it was ended with exit status 3"),
        ("", "the process that tried it was ended with exit status 0"),
    ],
)
def test_a_child_that_dies_is_one_line_and_its_note_stays(
    tmp_path: Path, notes: Path, monkeypatch: pytest.MonkeyPatch, program: str, line: str
) -> None:
    child_is(monkeypatch, tmp_path, f"import sys; sys.stdin.buffer.read()\n{program}")
    opened: list[str] = []
    monkeypatch.setattr(served_model, "open_model", lambda *_: opened.append("here"))
    for serving in (True, False):  # the second time, as a start would, for the note that is left
        with pytest.raises(TrialError) as found:
            open_tried("x", tmp_path / "x", CPU, serving=serving)
        assert str(found.value) == f"model x cannot be opened: {line}"
    assert not opened
    assert len(os.listdir(notes)) == 1


def test_an_error_of_another_library_is_in_the_log_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    child_is(
        monkeypatch,
        tmp_path,
        'import sys; sys.stdin.buffer.read(); print(\'{"error": "Traceback of 7", "kind": "", "memory": false}\')',
    )
    with pytest.raises(TrialError, match=r"^model x cannot be opened: an unexpected error, the log has it$"):
        try_bundle("x", tmp_path / "x", CPU)
    assert "Traceback of 7" in caplog.text


@pytest.mark.parametrize(
    ("kind", "raised"), [("BackendError", DeviceError), ("ExportError", BundleError), ("ValueError", BundleError)]
)
def test_an_error_is_of_this_host_or_of_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, raised: type[Exception]
) -> None:
    answer = {"error": "one line", "kind": kind, "memory": False}
    child_is(monkeypatch, tmp_path, f"import json, sys; sys.stdin.buffer.read(); print(json.dumps({answer}))")
    with pytest.raises(raised, match=r"^one line$"):
        try_bundle("x", tmp_path / "x", CPU)


def test_a_start_opens_without_a_child_and_leaves_no_note(
    notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions: list[str | None] = []

    def open_here(name: str, path: Path, settings: Settings, version: str | None) -> None:
        versions.append(version)
        assert len(os.listdir(notes)) == 1
        if path.name == "bad":
            raise BundleError("not sound")

    monkeypatch.setattr(served_model, "open_model", open_here)
    monkeypatch.setattr(served_model, "try_bundle", lambda *_: "v")
    open_tried("a", tmp_path / "a", CPU)
    with pytest.raises(BundleError):
        open_tried("a", tmp_path / "bad", CPU)
    assert not os.listdir(notes)
    open_tried("a", tmp_path / "a", CPU, serving=True)
    with noted(tmp_path / "a") as suspect:
        assert not suspect
        open_tried("a", tmp_path / "a", CPU)  # in another process, which that one's note makes wary
    assert versions == [None, None, "v", "v"]
    assert not os.listdir(notes)


@pytest.mark.parametrize("home", [None, "/proc/nowhere"])
def test_where_no_note_can_be_kept_a_child_tries_every_bundle_and_the_log_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, home: str | None
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME") if home is None else monkeypatch.setenv("HOME", home)
    trial._warn_once.cache_clear()
    for _ in range(2):
        with noted(tmp_path) as suspect:
            assert suspect
    [line] = caplog.messages
    assert line.startswith("no note of what is being opened can be kept, so a child tries every bundle: ")


def test_only_the_version_that_passed_is_opened(monkeypatch: pytest.MonkeyPatch, notes: Path) -> None:
    version = read_config(DEMO).version
    monkeypatch.setattr(served_model, "try_bundle", lambda *_: "0" * 12)
    with pytest.raises(ValueError, match=f"was replaced while it was opened: {'0' * 12} by {version}"):
        open_tried("demo", DEMO, CPU, serving=True)
    assert not os.listdir(notes)
