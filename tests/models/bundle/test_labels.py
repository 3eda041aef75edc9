"""Labels from TSV, JSON and plain text; wrong files are refused by line."""

import json
from pathlib import Path

import pytest

from milkweed.models.bundle.labels import Label, default_labels, labels_document, parse_labels, read_labels


def written(tmp_path: Path, name: str, text: str) -> Path:
    (tmp_path / name).write_text(text)
    return tmp_path / name


def test_the_imagenet_labels_are_read(shared: Path) -> None:
    labels = read_labels(shared / "data" / "imagenet_classes.tsv")
    assert len(labels) == 1000
    assert labels[0] == Label("n01440764", "tench")
    assert labels[2] == Label("n01484850", "great_white_shark")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.tsv", "0\ta\tan ant\n1\tb\ta bee\n"),
        ("x.tsv", "1\tb\ta bee\r\n0\ta\tan ant\r\n"),
        ("x.tsv", "a\tan ant\nb\ta bee"),
        ("x.json", '[{"id": "a", "label": "an ant"}, {"id": "b", "label": "a bee"}]'),
        ("x.TSV", "\ufeff0\ta\tan ant\n1\tb\ta bee\n"),
    ],
)
def test_label_files_with_ids_are_read(tmp_path: Path, name: str, text: str) -> None:
    assert read_labels(written(tmp_path, name, text)) == (Label("a", "an ant"), Label("b", "a bee"))


@pytest.mark.parametrize(("name", "text"), [("x.txt", "an ant\na bee\n"), ("x.json", '["an ant", "a bee"]')])
def test_label_files_without_ids_use_the_index(tmp_path: Path, name: str, text: str) -> None:
    assert read_labels(written(tmp_path, name, text)) == (Label("0", "an ant"), Label("1", "a bee"))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.tsv", "0\ta\tant\n0\tb\tbee\n", "line 2: index 0 appears twice"),
        ("x.tsv", "0\ta\tant\n2\tb\tbee\n", "2 labels, but none for index 1"),
        ("x.tsv", "zero\ta\tant\n", "line 1 must be index, id and label"),
        ("x.tsv", "just text\n", "line 1 must be index, id and label"),
        ("x.tsv", "", "0 labels"),
        ("x.txt", "", "no labels"),
        ("x.txt", "a\n\nb\n", "line 2: label must be 1 to 1000 characters, not ''"),
        ("x.json", "{}", "labels must be a list"),
        ("x.json", "[", "not JSON"),
        ("x.json", '[{"id": "a"}]', "entry 0 must be"),
        ("x.json", '["' + "x" * 1001 + '"]', "1 to 1000 characters"),
    ],
)
def test_wrong_files_are_refused_by_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = written(tmp_path, name, text)
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        read_labels(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_missing_and_binary_label_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot read labels"):
        read_labels(tmp_path / "nowhere.txt")
    (tmp_path / "x.txt").write_bytes(b"ok\n\xff\xfe")
    with pytest.raises(ValueError, match="not UTF-8 at byte 3"):
        read_labels(tmp_path / "x.txt")


def test_default_labels_round_trip() -> None:
    labels = default_labels(18)
    assert labels[17] == Label("17", "class 17")
    assert parse_labels(json.loads(json.dumps(labels_document(labels)))) == labels
