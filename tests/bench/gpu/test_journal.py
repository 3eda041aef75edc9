"""The journal: several processes write it, a torn line spoils no other, and it tells what is still to be measured."""

import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import pytest

from milkweed.bench.gpu.journal import (
    ABSENT,
    COMPLETE,
    DIED,
    ERROR,
    WRONG,
    Absent,
    Journal,
    Record,
    attempt,
    attempt_parts,
    ends,
    quarantine,
    read,
    rows,
    to_measure,
)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "new" / "day.jsonl")


def end(journal: Journal, unit: str, state: str = COMPLETE) -> None:
    journal.write("end", {"unit": unit, "state": state})


def write_many(path: Path, who: int) -> None:
    journal = Journal(path)
    for number in range(50):
        journal.write("row", {"section": "mlp", "what": f"{who}/{number}", "filler": "x" * 500})


def test_processes_write_beside_each_other(journal: Journal) -> None:
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=write_many, args=(journal.path, who)) for who in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(rows(journal.read())) == 200


def test_a_torn_line_spoils_neither_the_lines_before_nor_those_behind(journal: Journal) -> None:
    end(journal, "a")
    with journal.path.open("ab") as file:
        file.write(b'{"kind": "end", "unit": "b", "sta')
    end(Journal(journal.path), "c")
    assert list(ends(journal.read())) == ["a", "c"]
    assert len(journal.path.read_bytes().splitlines()) == 3
    assert read(journal.path.with_name("none.jsonl")) == []


def test_a_unit_has_its_rows_and_its_end(journal: Journal) -> None:
    def measured(*made: Record, error: Exception | None = None) -> Iterator[Record]:
        yield from made
        if error:
            raise error

    infinite = {"what": "a", "error": float("inf"), "more": [{"a": float("nan")}], "us": 1.5}
    attempt(journal, "mlp/a/32/r2", 60, measured(infinite, {"kind": "check", "passed": True}))
    attempt(journal, "wrong", 60, measured({"passed": False, "note": "off"}, {"passed": False}))
    attempt(journal, "absent", 60, measured(error=Absent("no nvcc")))
    attempt(journal, "error", 60, measured({"what": "before"}, error=ValueError("first line\nsecond")))
    row, *_, before = rows(journal.read())
    assert (row["error"], row["more"], row["us"], row["round"]) == ("not finite", [{"a": "not finite"}], 1.5, 2)
    assert (before["what"], before["round"]) == ("before", 1)
    assert {unit: (last["state"], last["why"]) for unit, last in ends(journal.read()).items()} == {
        "mlp/a/32/r2": (COMPLETE, ""),
        "wrong": (WRONG, "2 failed, the first: off"),
        "absent": (ABSENT, "no nvcc"),
        "error": (ERROR, "ValueError: first line"),
    }


def test_a_part_that_was_measured_is_not_measured_again(journal: Journal) -> None:
    end(journal, "images/a", DIED)
    attempt_parts(journal, "images", 60, ((name, [{"what": name}]) for name in "ab"))
    assert [row["unit"] for row in rows(journal.read())] == ["images/b"]


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
def test_what_a_start_measures(states: tuple[str, ...], again: bool, journal: Journal) -> None:
    for state in states:
        end(journal, "unit", state)
    assert to_measure(journal.read(), ["unit"]) == (["unit"] if again else [])


def test_of_two_rows_of_one_key_the_later_counts(journal: Journal) -> None:
    for turn, us in ((1, 2.0), (1, 3.0), (2, 1.0)):
        row = {"what": "ViT-B", "batch": 32, "candidate": "dense", "round": turn, "us": us}
        journal.write("row", {"section": "mlp", **row})
    assert [row["us"] for row in rows(journal.read())] == [3.0, 1.0]


def test_unfit_are_tiles_that_were_wrong_or_died_and_operators_that_did_not_get_through(journal: Journal) -> None:
    for tile, state in (("2", COMPLETE), ("3", WRONG), ("0", DIED), ("1", ERROR)):
        end(journal, f"smoke/native_mlp/native_mlp:{tile}", state)
    end(journal, "smoke/native_mlp")
    end(journal, "smoke/triton", ABSENT)  # nothing could be asked of it
    end(journal, "smoke/native_branch", DIED)
    end(journal, "mlp/ViT-B/32/r1", DIED)
    assert quarantine(journal.read()) == ["native_mlp:3", "native_mlp:0", "native_mlp:1", "native_branch"]
