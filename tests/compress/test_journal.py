"""A search that was killed goes on: what has a line is not computed again, a torn line is."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from milkweed.compress.journal import FILE, Trials, TrialsError


def never() -> None:
    raise AssertionError("it has a line")


def got(folder: Path, key: str, compute: Any = never, **belongs_to: Any) -> Any:
    with closing(Trials(folder, belongs_to)) as trials:
        return trials.get(key, compute)


def test_what_was_found_is_not_computed_again(tmp_path: Path) -> None:
    with closing(Trials(tmp_path, {"model": "a"})) as first:
        assert first.get("time/dense", lambda: {"ms": 2.5, "rows": (1, 2)}) == {"ms": 2.5, "rows": [1, 2]}
        assert not first.resumed
    with closing(Trials(tmp_path, {"model": "a"})) as again:
        assert again.resumed
        assert again.get("time/dense", never) == {"ms": 2.5, "rows": [1, 2]}
        assert again.get("nothing", lambda: None) is None
    assert got(tmp_path, "nothing", model="a") is None


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_line_that_was_not_finished_is_computed_again(cut: int, tmp_path: Path) -> None:
    with closing(Trials(tmp_path, {"model": "a"})) as trials:
        trials.get("one", lambda: 1)
        trials.get("two", lambda: 2)
    file = trials.folder / FILE
    file.write_bytes(file.read_bytes()[:-cut])
    with closing(Trials(tmp_path, {"model": "a"})) as again:
        assert again.get("one", never) == 1
        assert again.get("two", lambda: 3) == 3
    assert got(tmp_path, "two", model="a") == 3


def test_a_failure_is_no_finding(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        got(tmp_path, "a")
    assert got(tmp_path, "a", lambda: 1) == 1


def test_another_model_or_other_images_have_a_folder_of_their_own(tmp_path: Path) -> None:
    assert got(tmp_path, "a", lambda: 1, model="a", images=5) == 1
    assert got(tmp_path, "a", lambda: 2, model="a", images=6) == 2
    assert got(tmp_path, "a", images=5, model="a") == 1
    assert len(list(tmp_path.iterdir())) == 2


def test_two_processes_do_not_write_one_record(tmp_path: Path) -> None:
    with closing(Trials(tmp_path, {})), pytest.raises(TrialsError, match="another process searches with this model"):
        Trials(tmp_path, {})
    assert got(tmp_path, "a", lambda: 1) == 1
