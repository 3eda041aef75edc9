"""A few dozen cases of each fuzzer, and what the runner says of a target that finds, dies or hangs."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from ..support.waiting import HANG_SECONDS
from . import __main__ as runner
from .finding import Finding, Target, attempt

CASES = {"bundles": 4, "programs": 4, "resize": 40}
"""Those that take long; others have 400."""


@pytest.mark.parametrize("name", runner.targets(None))
def test_a_few_cases_find_nothing(name: str) -> None:
    for seed in range(CASES.get(name, 400)):
        runner.targets(None)[name](random.Random(seed))


def finds(draw: random.Random) -> None:
    attempt(lambda: 1 // draw.randrange(3), b"the input")


def dies(draw: random.Random) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hangs(draw: random.Random) -> None:
    time.sleep(600)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (finds, "fuzzed: seed 2: ZeroDivisionError: "),
        (dies, "fuzzed: seed 0: its process died: SIGKILL"),
        (hangs, "fuzzed: seed 0: a case takes more than 0.1 s"),
    ],
)
def test_a_finding_is_named_by_its_seed(
    target: Target, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "CASE_SECONDS", 0.1 if target is hangs else HANG_SECONDS)
    monkeypatch.setattr(runner, "MOST_FINDINGS", 1)  # it ends by that, however long a case takes
    first = next(seed for seed in range(99) if not random.Random(seed).randrange(3))
    assert runner.fuzz("fuzzed", target, 0, HANG_SECONDS, tmp_path) == 1
    printed = capsys.readouterr().out
    assert words.replace("seed 2", f"seed {first}") in printed
    assert "1 findings" in printed
    if target is finds:
        assert (tmp_path / f"fuzzed-{first}").read_bytes() == b"the input"
        assert runner.fuzz("fuzzed", target, first, 0.0, tmp_path) == 1  # that case alone


def test_a_refusal_is_no_finding_and_another_error_is() -> None:
    assert attempt(lambda: int("1"), b"", ValueError)
    assert not attempt(lambda: int("x"), b"", ValueError)
    with pytest.raises(Finding, match="ValueError: invalid"):
        attempt(lambda: int("x"), b"", KeyError)
