"""The journal: several processes write it, a torn line spoils no other, and it tells what is still to be measured."""

import multiprocessing
from pathlib import Path

import pytest

from milkweed.bench.gpu.goals import fastest
from milkweed.bench.gpu.journal import (
    ABSENT,
    COMPLETE,
    DIED,
    ERROR,
    WRONG,
    Journal,
    Writer,
    ends,
    in_flight,
    quarantine,
    read,
    rows,
    to_measure,
)


def write_many(path: Path, who: int) -> None:
    journal = Journal(path)
    for number in range(50):
        journal.write({"kind": "row", "section": "mlp", "what": f"{who}/{number}", "filler": "x" * 500}, sync=False)


def test_processes_write_beside_each_other(tmp_path: Path) -> None:
    path = tmp_path / "a" / "day.jsonl"
    spawn = multiprocessing.get_context("fork")
    writers = [spawn.Process(target=write_many, args=(path, who)) for who in range(4)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    assert len(rows(read(path))) == 200


def test_a_torn_line_spoils_neither_the_lines_before_nor_those_behind(tmp_path: Path) -> None:
    path = tmp_path / "day.jsonl"
    Journal(path).end("a", COMPLETE)
    with path.open("ab") as file:
        file.write(b'{"kind": "end", "unit": "b", "sta')
    Journal(path).end("c", COMPLETE)
    assert list(ends(read(path))) == ["a", "c"]
    assert len(path.read_bytes().splitlines()) == 3


def test_no_file_has_no_records(tmp_path: Path) -> None:
    assert read(tmp_path / "none.jsonl") == []


def test_values_that_json_does_not_know_are_text(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "day.jsonl")
    Writer(journal, "mlp")({"error": float("inf"), "more": [{"a": float("nan")}], "us": 1.5})
    (row,) = journal.read()
    assert (row["error"], row["more"], row["us"]) == ("not finite", [{"a": "not finite"}], 1.5)


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
def test_what_a_start_measures(states: tuple[str, ...], again: bool, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "day.jsonl")
    for state in states:
        journal.begin("unit")
        journal.end("unit", state)
    journal.begin("unit" if not states else "other")  # interrupted: begun without an end
    assert to_measure(journal.read(), ["unit"]) == (["unit"] if again else [])


def test_the_innermost_unit_in_flight_comes_last(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "day.jsonl")
    for unit in ("smoke/a", "smoke/a/a:0"):
        journal.begin(unit)
    journal.end("smoke/a/a:0", COMPLETE)
    journal.begin("smoke/a/a:1")
    assert in_flight(journal.read()) == ["smoke/a", "smoke/a/a:1"]


def test_of_two_rows_of_one_key_the_later_counts(tmp_path: Path) -> None:
    writer = Writer(Journal(tmp_path / "day.jsonl"), "mlp")
    for us in (2.0, 3.0):
        writer({"what": "ViT-B", "batch": 32, "candidate": "dense", "round": 1, "us": us})
    writer({"what": "ViT-B", "batch": 32, "candidate": "dense", "round": 2, "us": 1.0})
    found = rows(writer.journal.read())
    assert [row["us"] for row in found] == [3.0, 1.0]
    best = fastest(found)
    assert best is not None
    assert best["round"] == 2


def test_quarantined_names_are_those_of_all_starts(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "day.jsonl")
    for names in (["native_mlp:3"], ["triton:2", "native_mlp:3"]):
        journal.write({"kind": "quarantine", "names": names})
    assert quarantine(journal.read()) == ("native_mlp:3", "triton:2")
