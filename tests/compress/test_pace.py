"""The time that is left of a search is of all its parts, also of those that measure no model."""

import pytest

from milkweed.compress import pace
from milkweed.models.progress import Progress


def test_the_time_left_is_of_the_whole_search(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    now = [0.0]
    monkeypatch.setattr(pace.time, "perf_counter", lambda: now[0])
    search = pace.Pace(Progress(note=notes.append), 3)
    search.expect_seconds(screening=60.0, training=300.0)
    for _ in range(2):
        with search.model(on_record=False):
            now[0] += 120.0
        search.expect_seconds(screening=0.0)
    assert notes == [
        "search: 1 of 3 models, about 10 min left",  # two models of 2 min, 1 of screening, 5 of training
        "search: 2 of 3 models, about 7 min left",
    ]
