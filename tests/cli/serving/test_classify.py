"""Tests `milkweed classify`: its answers, and files of them that can be resumed."""

import csv
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from milkweed.cli.serving.classify_output import AnswerFile
from milkweed.client import Answer, Prediction

from ...support.command import Milkweed, Refused
from ...support.repositories import with_confidence


@pytest.fixture
def want(milkweed: Milkweed, bundle: Path, photos: Path) -> dict[str, Any]:
    """The answers as one JSON object, by image."""
    ran = milkweed("classify", "--model", bundle, photos, "--top-k", 2, "--json")
    assert ran.err.startswith("milkweed: error: 1 of 8 images got no answer, the first: ")
    return {result["image"]: result for result in ran.document["results"]}


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_ndjson_is_a_line_an_image(milkweed: Milkweed, bundle: Path, photos: Path, want: dict[str, Any]) -> None:
    ran = milkweed("classify", "--model", bundle, photos, "--top-k", 2, "--format", "ndjson")
    assert ran.code == 1
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert [line["image"] for line in lines] == list(want)
    for line in lines:
        assert (line.pop("model"), len(line.pop("version"))) == ("tiny", 12)
        assert line == want[line["image"]]


def test_csv_is_a_row_a_class(milkweed: Milkweed, bundle: Path, photos: Path, want: dict[str, Any]) -> None:
    ran = milkweed("classify", "--model", bundle, photos, "--top-k", 2, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(ran.out)))
    found: dict[str, Any] = {}
    for row in rows:
        if row["error"]:
            error = {"code": row["error"], "message": row["message"]}
            found[row["image"]] = {"image": row["image"], "error": error}
            assert not any(row[name] for name in ("rank", "index", "id", "label", "score"))
            continue
        entry = {"index": int(row["index"]), "id": row["id"], "label": row["label"], "score": float(row["score"])}
        predictions = found.setdefault(row["image"], {"image": row["image"], "predictions": []})["predictions"]
        predictions.append(entry)
        assert int(row["rank"]) == len(predictions)
    assert found == want
    assert len(rows) == 7 * 2 + 1


def test_an_image_may_have_no_class_above_the_threshold(
    milkweed: Milkweed, bundle: Path, photos: Path, tmp_path: Path, want: dict[str, Any]
) -> None:
    name, (best, other) = str(photos / "0.png"), want[str(photos / "0.png")]["predictions"]
    ask = ("classify", "--model", bundle, name, "--top-k", 2)
    between = (best["score"] + other["score"]) / 2
    (kept,) = json.loads(milkweed(*ask, "--threshold", between, "--json").ok().out)["results"]
    assert kept["predictions"] == [best]
    none = (*ask, "--threshold", 1)
    assert milkweed(*none).ok().out == f"{name}\n  no class above the threshold\n"
    out = tmp_path / "none.csv"
    milkweed(*none, "--output", out).ok()
    assert out.read_text().splitlines()[1:] == [f"{name},,,,,,,"]
    again = milkweed(*none, photos / "1.png", "--output", out, "--resume").ok()
    assert "0 answers" not in again.err
    assert [line.rstrip(",") for line in out.read_text().splitlines()[1:]] == [name, str(photos / "1.png")]


def test_answers_below_the_threshold_of_confidence_are_not_sure(
    milkweed: Milkweed, bundle: Path, photos: Path, tmp_path: Path, want: dict[str, Any]
) -> None:
    best = {name: result["predictions"][0]["score"] for name, result in want.items() if "predictions" in result}
    threshold = sorted(best.values())[3]
    assert len(unsure := {name for name, score in best.items() if score < threshold}) == 3
    with_confidence(bundle, tmp_path / "known", threshold)
    ask = ("classify", "--model", tmp_path / "known", photos)
    results = {result["image"]: result for result in milkweed(*ask, "--threshold", 1, "--json").document["results"]}
    assert {name for name, result in results.items() if result.get("sure") is False} == unsure
    assert {name for name, result in results.items() if result.get("sure") is True} == best.keys() - unsure
    assert set(re.findall(r"^(.*) \(not sure\)$", milkweed(*ask).out, re.MULTILINE)) == unsure


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize("name", ["a.ndjson", "a.jsonl", "a.csv", "a.json", "a.txt"])
def test_a_file_has_what_stdout_would(
    milkweed: Milkweed, bundle: Path, photos: Path, tmp_path: Path, name: str
) -> None:
    kind = {"ndjson": "ndjson", "jsonl": "ndjson", "csv": "csv", "json": "json", "txt": "text"}[name.split(".")[1]]
    printed = milkweed("classify", "--model", bundle, photos, "--format", kind)
    ran = milkweed("classify", "--model", bundle, photos, "--output", tmp_path / name)
    assert (ran.code, ran.out) == (1, "")
    assert (tmp_path / name).read_text() == printed.out


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize("kind", ["ndjson", "csv"])
@pytest.mark.parametrize("tear", [0, 30, 400])
def test_resume_completes_a_torn_file(
    milkweed: Milkweed, bundle: Path, photos: Path, tmp_path: Path, opened: list[str], kind: str, tear: int
) -> None:
    """Cut anywhere, it ends as if nothing had happened; only what was lost is asked about again."""
    whole, torn = tmp_path / f"whole.{kind}", tmp_path / f"torn.{kind}"
    arguments = ("classify", "--model", bundle, photos, "--top-k", 2)
    assert milkweed(*arguments, "--output", whole).code == 1
    content = whole.read_bytes()
    torn.write_bytes(content[: len(content) - tear])
    opened.clear()
    ran = milkweed(*arguments, "--output", torn, "--resume")
    assert torn.read_bytes() == content
    assert ran.code == 1
    assert ran.err.splitlines()[-1].startswith("milkweed: error: 1 of 8 images got no answer, the first: ")
    lines = content[: content.rfind(b"\n", 0, len(content) - tear) + 1].decode().splitlines()
    # A CSV's last image is asked about again: whether its rows are all there cannot be told.
    kept = len(lines) if kind == "ndjson" else len({row[0] for row in csv.reader(lines[1:])}) - 1
    assert len(opened) == 8 - kept


def test_names_of_images_may_hold_any_bytes(
    milkweed: Milkweed, bundle: Path, images: list[bytes], tmp_path: Path, opened: list[str]
) -> None:
    root = tmp_path / "odd"
    root.mkdir()
    names = [b'a "quoted", one.png', b"two\nlines.png", b"car\rriage.png", "ümlaut.png".encode(), b"bytes\xff.png"]
    for name, image in zip(names, images, strict=False):
        (root / os.fsdecode(name)).write_bytes(image)
    for kind in ("csv", "ndjson"):
        out = tmp_path / f"out.{kind}"
        milkweed("classify", "--model", bundle, root, "--output", out).ok()
        content = out.read_bytes()
        out.write_bytes(content[:-5])
        opened.clear()
        milkweed("classify", "--model", bundle, root, "--output", out, "--resume").ok()
        assert out.read_bytes() == content
        assert len(opened) == 1
    with open(tmp_path / "out.csv", encoding="utf-8", errors="surrogateescape", newline="") as file:
        assert {row["image"] for row in csv.DictReader(file)} == {str(root / os.fsdecode(name)) for name in names}
    found = {record["image"] for record in records(tmp_path / "out.ndjson")}
    assert found == {str(root / os.fsdecode(name)) for name in names}
    milkweed("classify", "--model", bundle, root).ok()


def test_a_pipe_gets_the_names_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the locale's encoding is, and however strict."""
    stdout = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(stdout, encoding="ascii", errors="strict"))
    with AnswerFile("csv", None) as answers:
        answers.add(os.fsdecode(b"\xc3\xbc\xff.png"), Answer((Prediction(0, "n0", "Ölbaum", 0.5),)))
    sys.stdout.flush()
    assert stdout.getvalue().splitlines()[1] == b"\xc3\xbc\xff.png,1,0,n0,\xc3\x96lbaum,0.5,,"


def test_text_for_people_holds_nothing_that_a_terminal_obeys(capfd: pytest.CaptureFixture[str]) -> None:
    with AnswerFile("text", None) as answers:
        answers.add("a\x1b[31m.png", Answer((Prediction(0, "n\x1b0", "two\nlines\x1b[2J", 0.5),)))
    assert capfd.readouterr().out == "a\\x1b[31m.png\n   0.5000  two\\nlines\\x1b[2J (n\\x1b0)\n"


@pytest.mark.slow
def test_a_run_without_an_answer_leaves_no_file(milkweed: Milkweed, photos: Path, tmp_path: Path) -> None:
    for name in ("a.csv", "a.json"):
        ran = milkweed("classify", "--url", "http://127.0.0.1:1/no", photos / "0.png", "--output", tmp_path / name)
        assert ran.code == 1
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def test_answers_of_another_model_are_told(
    milkweed: Milkweed, bundle: Path, dense_bundle: Path, photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "a.ndjson"
    milkweed("classify", "--model", bundle, photos / "0.png", "--output", out).ok()
    arguments = ("classify", photos / "0.png", photos / "1.png", "--output", out, "--resume")
    first, second, *_ = milkweed(*arguments, "--model", dense_bundle).err.splitlines()
    before, after = (f"{record['model']} {record['version']}" for record in records(out))
    assert first == f"milkweed: {out} holds 1 answers: 1 of 2 images are left"
    assert second == f"milkweed: {out} is from here on by {after}, before by {before}"
    assert (before.split()[0], after.split()[0]) == ("tiny", "dense")


def test_resume_with_nothing_left_opens_nothing(milkweed: Milkweed, bundle: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.ndjson"
    arguments = ("classify", photos / "0.png", photos / "1.png", "--output", out)
    milkweed(*arguments, "--model", bundle).ok()
    content = out.read_bytes()
    ran = milkweed(*arguments, "--model", tmp_path / "no bundle", "--resume")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == f"milkweed: {out} holds 2 answers: 0 of 2 images are left\n"
    assert out.read_bytes() == content


def test_classify_refuses_what_cannot_be_done(refused: Refused, bundle: Path, photos: Path, tmp_path: Path) -> None:
    ask = ("classify", "--model", bundle, photos)
    (tmp_path / "a.csv").write_text("image,label\nx,y\n")
    (tmp_path / "a.ndjson").write_text('{"image": "x"}\n')
    (tmp_path / "b.ndjson").write_text("text\n")
    taken = f"--output {tmp_path / 'a.csv'}: exists already; --resume goes on with it"
    assert refused(*ask, "--output", tmp_path / "a.csv") == taken
    assert refused(*ask, "--output", tmp_path / "a.csv", "--format", "text") == taken.partition(";")[0]
    for name, what in (
        ("a.csv", "line 1 is not image,rank,index,id,label,score,error,message"),
        ("a.ndjson", '\'{"image": "x"}\' is no answer'),
        ("b.ndjson", "'text' is no answer"),
    ):
        said = refused(*ask, "--output", tmp_path / name, "--resume")
        assert said == f"--output {tmp_path / name}: {what}: not written by this command, not resumed"
    header = "image,rank,index,id,label,score,error,message\n"
    (tmp_path / "c.csv").write_text(header + 'x,1,1,n,l,0.5,,\n"y"z,1,1,n,l,0.5,,\nz,1,1,n,l,0.5,,\n')
    for name, content in (("d.csv", "notes, on one line"), ("d.ndjson", '{"my": "only copy"}')):
        (tmp_path / name).write_text(content)
    for name in ("c.csv", "d.csv", "d.ndjson"):
        content = (tmp_path / name).read_text()
        assert "not written by this command" in refused(*ask, "--output", tmp_path / name, "--resume")
        assert (tmp_path / name).read_text() == content
        (tmp_path / name).unlink()
    assert refused(*ask, "--threshold", 1.5, code=2) == "--threshold 1.5: must be 0 to 1"
    assert refused(*ask, "--shrink", code=2) == "--shrink is for what is sent: it goes with --url"
    both = "--resume goes with --output FILE, as csv or ndjson"
    assert refused(*ask, "--resume", code=2) == both
    assert refused(*ask, "--resume", "--output", tmp_path / "x.json", code=2) == both
    assert refused(*ask, "--format", "xml", code=2) == "--format xml: must be one of text, csv, json, ndjson, parquet"
    assert refused("classify", tmp_path / "*.jpg") == f"IMAGE {tmp_path / '*.jpg'}: no file has such a name"
    assert refused(*ask, "--json", "--format", "csv", code=2) == "--json does not go with --format csv"
    assert refused("classify", "-", "-", code=2) == "IMAGE -: stdin can be read once"
    assert refused("classify", "", code=2) == "IMAGE '': must be a file, a folder, a pattern or -"
    assert refused("classify", "--from-file", "/dev/null") == "--from-file /dev/null: names no image"
    assert refused("classify", "--from-file", tmp_path / "no") == f"{tmp_path / 'no'}: No such file or directory"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.ndjson", "b.ndjson", "photos"]
