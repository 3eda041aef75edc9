"""A search that was killed goes on: what has a line is not computed again, a torn line is."""

from pathlib import Path

import pytest

from milkweed.jobs.search.trials import FILE, Trials, TrialsError


def never() -> None:
    raise AssertionError("it has a line")


def test_what_was_found_is_not_computed_again(tmp_path: Path) -> None:
    first = Trials(tmp_path, {"model": "a"})
    assert first.get("time/dense", lambda: {"ms": 2.5, "rows": (1, 2)}) == {"ms": 2.5, "rows": [1, 2]}
    assert not first.resumed
    again = Trials(tmp_path, {"model": "a"})
    assert again.resumed
    assert again.get("time/dense", never) == {"ms": 2.5, "rows": [1, 2]}
    assert again.get("nothing", lambda: None) is None
    assert Trials(tmp_path, {"model": "a"}).get("nothing", never) is None


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_line_that_was_not_finished_is_computed_again(cut: int, tmp_path: Path) -> None:
    trials = Trials(tmp_path, {"model": "a"})
    trials.get("one", lambda: 1)
    trials.get("two", lambda: 2)
    file = tmp_path / FILE
    file.write_bytes(file.read_bytes()[:-cut])
    again = Trials(tmp_path, {"model": "a"})
    assert again.get("one", never) == 1
    assert again.get("two", lambda: 3) == 3
    assert Trials(tmp_path, {"model": "a"}).get("two", never) == 3


def test_a_failure_is_no_finding(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        Trials(tmp_path, {}).get("a", never)
    assert Trials(tmp_path, {}).get("a", lambda: 1) == 1


def test_another_searchs_folder_is_refused(tmp_path: Path) -> None:
    Trials(tmp_path, {"model": "a", "images": 5})
    with pytest.raises(TrialsError, match="images 5, not 6"):
        Trials(tmp_path, {"model": "a", "images": 6})
