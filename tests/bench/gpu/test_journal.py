"""The journal: several processes write it, a torn line spoils no other, and it tells what is still to be measured."""

import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import pytest

from milkweed.bench.gpu import step
from milkweed.bench.gpu.journal import (
    ABSENT,
    COMPLETE,
    DIED,
    ERROR,
    WRONG,
    Absent,
    Record,
    append,
    ends,
    quarantine,
    read,
    rows,
    to_measure,
)
from milkweed.bench.gpu.plan import Task


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "day.jsonl"


def end(journal: Path, unit: str, state: str = COMPLETE) -> None:
    append(journal, {"kind": "end", "unit": unit, "state": state})


def write_many(path: Path, who: int) -> None:
    for number in range(50):
        append(path, {"kind": "row", "section": "mlp", "what": f"{who}/{number}", "filler": "x" * 500})


def test_processes_write_beside_each_other(journal: Path) -> None:
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=write_many, args=(journal, who)) for who in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(rows(read(journal))) == 200


def test_a_torn_line_spoils_neither_the_lines_before_nor_those_behind(journal: Path) -> None:
    end(journal, "a")
    with journal.open("ab") as file:
        file.write(b'{"kind": "end", "unit": "b", "sta')
    end(journal, "c")
    assert list(ends(read(journal))) == ["a", "c"]
    assert len(journal.read_bytes().splitlines()) == 3
    assert read(journal.with_name("none.jsonl")) == []


def test_a_unit_has_its_rows_and_its_end(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    infinite = {"what": "a", "error": float("inf"), "more": [{"a": float("nan")}], "us": 1.5}
    made: dict[str, list[Record | Exception]] = {
        "mlp/a/32/r2": [infinite, {"kind": "check", "passed": True}],
        "wrong": [{"what": "b", "passed": False, "note": "off"}, {"what": "c", "passed": False}],
        "absent": [Absent("no nvcc")],
        "missing": [ImportError("no module")],
        "error": [{"what": "before"}, ValueError("first line\nsecond")],
    }

    def rows_of(task: Task, unit: str) -> Iterator[Record]:
        for row in made[unit]:
            if isinstance(row, Exception):
                raise row
            yield row

    monkeypatch.setattr(step, "rows_of", rows_of)
    states = {unit: step.attempt(Task(str(journal)), unit) for unit in made}
    row, *_, before = rows(read(journal))
    assert (row["error"], row["more"], row["us"], row["round"]) == ("not finite", [{"a": "not finite"}], 1.5, 2)
    assert (before["what"], before["round"]) == ("before", 1)
    said = {unit: (last["state"], last["why"]) for unit, last in ends(read(journal)).items()}
    assert said == {
        "mlp/a/32/r2": (COMPLETE, ""),
        "wrong": (WRONG, "2 failed, the first: off"),
        "absent": (ABSENT, "no nvcc"),
        "missing": (ABSENT, "no module"),
        "error": (ERROR, "ValueError: first line"),
    }
    assert states == {unit: state for unit, (state, _) in said.items()}


@pytest.mark.parametrize(
    ("states", "again"),
    [
        ((), True),
        ((COMPLETE,), False),
        ((WRONG,), False),
        ((ERROR,), True),
        ((DIED,), True),
        ((ERROR, DIED), False),
        ((DIED, COMPLETE), False),
        ((ABSENT, ABSENT, ABSENT), True),
    ],
)
def test_what_a_start_measures(states: tuple[str, ...], again: bool, journal: Path) -> None:
    for state in states:
        end(journal, "unit", state)
    assert to_measure(read(journal), ["unit"]) == (["unit"] if again else [])


def test_of_two_rows_of_one_key_the_later_counts(journal: Path) -> None:
    for turn, us in ((1, 2.0), (1, 3.0), (2, 1.0)):
        row = {"what": "ViT-B", "batch": 32, "candidate": "dense", "round": turn, "us": us}
        append(journal, {"kind": "row", "section": "mlp", **row})
    assert [row["us"] for row in rows(read(journal))] == [3.0, 1.0]


def test_unfit_are_tiles_that_were_wrong_or_died(journal: Path) -> None:
    for tile, state in (("2", COMPLETE), ("3", WRONG), ("0", DIED), ("1", ERROR), ("4", ABSENT)):
        end(journal, f"smoke/native_mlp/native_mlp:{tile}", state)
    end(journal, "mlp/ViT-B/32/r1", DIED)
    assert quarantine(read(journal)) == ["native_mlp:3", "native_mlp:0", "native_mlp:1"]
