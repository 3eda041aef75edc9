"""What long commands say on stderr: at once on a terminal, and of a search no time that is a step's alone."""

import sys
import time
from types import SimpleNamespace

import pytest

from milkweed.cli import progress
from milkweed.cli.main import _told


def test_a_slow_command_says_on_a_terminal_that_it_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.modules["milkweed.cli.main"], "QUIET_SECONDS", 0.0)
    for command, is_terminal, said in (
        ("compress", True, "milkweed: compress is starting\n"),
        ("compress", False, ""),
        ("models", True, ""),
    ):
        monkeypatch.setattr(sys.stderr, "isatty", lambda is_terminal=is_terminal: is_terminal)
        with _told(command, [command]):
            end, err = time.monotonic() + 10, ""
            while said and not err and time.monotonic() < end:
                err += capsys.readouterr().err
        assert err + capsys.readouterr().err == said


@pytest.mark.parametrize("is_search", [True, False])
def test_the_steps_of_a_search_tell_no_time_left(
    is_search: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.0)
    with progress.job_progress("compress: ", is_search=is_search) as told:
        told.step("reading", 1, 4)
        told.step("reading", 2, 4)
    assert ("s left" in capsys.readouterr().err) != is_search


def test_a_resumed_job_tells_its_own_rate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=iter([0, 5, 5, 5, 15, 15, 15]).__next__))
    with progress.job_progress() as told:
        told.step("train", 8600, 8700)
        told.step("train", 8620, 8700)
    assert capsys.readouterr().err == "milkweed: train: 8620 of 8700 done, 2.0 done/s, 40 s left\n"


@pytest.mark.parametrize("resumes", [True, False])
def test_ctrl_c_says_that_the_same_command_goes_on(resumes: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), progress.job_progress(resumes=resumes):
        raise KeyboardInterrupt
    said = "milkweed: interrupted: the same command goes on from here\n"
    assert capsys.readouterr().err == (said if resumes else "")
