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
    ("name", "text", "message"),
    [
        ("x.tsv", "0\ta\tant\n0\tb\tbee\n", "line 2: index 0 appears twice"),
        ("x.tsv", "0\ta\tant\n2\tb\tbee\n", "2 labels, but none for index 1"),
        ("x.tsv", "zero\ta\tant\n", "line 1 must be index, id and label"),
        ("x.tsv", "just text\n", "line 1 must be index, id and label"),
        ("x.tsv", "", "0 labels"),
        ("x.txt", "", "no labels"),
        ("x.txt", "a\n\nb\n", "line 2: label must be 1 to 1000 characters, not ''"),
        ("x.json", "{}", "0 labels, but none for index 0"),
        ("x.json", "[]", "labels must be a list"),
        ("x.json", "[", "not JSON"),
        ("x.json", '[{"id": "a"}]', "entry 0 must be"),
        ("x.json", '["' + "x" * 1001 + '"]', "1 to 1000 characters"),
        ("x.json", '{"0": "a", "2": "b"}', "2 labels, but none for index 1"),
        ("x.json", '{"1": "a", "2": "b"}', "2 labels, but none for index 0"),
        ("x.json", '{"a": 0, "b": 0}', "index 0 appears twice"),
        ("x.json", '{"0": "a", "0": "b"}', "key '0' appears twice"),
        ("x.json", '{"n01440764": "tench"}', "labels are expected by index, 'n01440764' is none"),
        ("x.json", '{"0": ["a", "b", "c"]}', "label must be 1 to 1000 characters"),
        ("x.txt", "{0: 'a', 0: 'b'}", "a key of the Python dict appears twice"),
        ("x.txt", "{0: open('/etc/passwd')}", "begins as JSON or as a Python dict, and is neither"),
        ("x.txt", "1 a\n2 b", "2 labels, but none for index 0"),
        ("x.txt", "0: 'a',\n1: 'b',", "line 1 is of another format, no label"),
        ("x.txt", '"a",\n"b",', "line 1 is of another format, no label"),
        ("x.txt", "names:\n  0: a", "line 1 is of another format, no label"),
        ("x.txt", "- a\n- b", "line 1 is of another format, no label"),
        ("x.txt", "item {\n  id: 1\n}", "line 1 is of another format, no label"),
        ("x.txt", "version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 3", "a Git LFS pointer"),
        ("x.yaml", "names: [a, b]", ".yaml is not read"),
        ("x.csv", "0,a\n1,b,c", "line 2 must be index, id and label"),
        ("x.csv", "0,a,b,c\n1,d,e,f", "line 1 must be index, id and label"),
        ("x.csv", '0,"a\n1,b', "not CSV"),
    ],
)
def test_wrong_files_and_other_formats_are_refused_by_line(tmp_path: Path, name: str, text: str, message: str) -> None:
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


IDS = (Label("n01440764", "tench"), Label("n01443537", "shark, great white"))
PLAIN = (Label("0", "tench"), Label("1", "shark, great white"))


@pytest.mark.parametrize(
    ("name", "text", "labels"),
    [
        ("x.tsv", "0\tn01440764\ttench\n1\tn01443537\tshark, great white\n", IDS),
        ("x.tsv", "1\tn01443537\tshark, great white\r\n0\tn01440764\ttench\r\n", IDS),
        ("x.tsv", "n01440764\ttench\nn01443537\tshark, great white", IDS),
        ("x.json", '[{"id": "n01440764", "label": "tench"}, {"id": "n01443537", "label": "shark, great white"}]', IDS),
        ("x.TSV", "\ufeff0\tn01440764\ttench\n1\tn01443537\tshark, great white\n", IDS),
        ("x.txt", "tench\nshark, great white\n", PLAIN),
        ("x.json", '["tench", "shark, great white"]', PLAIN),
        ("x.json", '{"0": ["n01440764", "tench"], "1": ["n01443537", "shark, great white"]}', IDS),  # Keras, TorchServe
        ("x.json", '{"1": "shark, great white", "0": "tench"}', PLAIN),
        ("x.json", '{"tench": 0, "shark, great white": 1}', PLAIN),
        ("x.json", '\ufeff{"id2label": {"0": "tench", "1": "shark, great white"}, "model_type": "vit"}', PLAIN),
        ("x.json", '{"label2id": {"shark, great white": 1, "tench": 0}, "layers": [1]}', PLAIN),
        ("x.txt", "{0: 'tench',\n 1: 'shark, great white'}\n", PLAIN),
        ("x.txt", '["tench", "shark, great white"]', PLAIN),
        ("x.csv", '0,tench\r\n1,"shark, great white"\r\n', PLAIN),
        ("x.csv", 'label,index\n"shark, great white",1\ntench,0\n', PLAIN),
        ("x.csv", 'Class_ID,class_name\n0,tench\n1,"shark, great white"\n', PLAIN),
        ("x.csv", "nummer;name\n1;shark, great white\n0;tench\n", PLAIN),
        ("x.csv", 'label\ntench\n"shark, great white"\n', PLAIN),
        ("x.csv", 'n01440764,tench\nn01443537,"shark, great white"\n', IDS),
        ("x.tsv", "index\tid\tlabel\n1\tn01443537\tshark, great white\n0\tn01440764\ttench\n", IDS),
        ("x.txt", "0 tench\n1 shark, great white\n", PLAIN),
        ("x.txt", "1: shark, great white\n0: tench\n", PLAIN),
        ("x.txt", "n01440764 tench\nn01443537 shark, great white\n", IDS),  # synset_words.txt
        ("x.txt", "0\tn01440764\ttench\n1\tn01443537\tshark, great white", IDS),
        ("x.names", "tench\r\nshark, great white\r\n", PLAIN),
        ("x.txt", "n01440764\nn01443537", tuple(Label(label.id, label.id) for label in IDS)),
    ],
)
def test_label_files_are_read(tmp_path: Path, name: str, text: str, labels: tuple[Label, ...]) -> None:
    assert read_labels(written(tmp_path, name, text)) == labels


@pytest.mark.parametrize(
    "lines",
    [
        ["great white shark, man-eater", "jack-o'-lantern", "potter's wheel", "\u00dcberm\u00fctiger Kr\u00e4he"],
        ["class 0", "class 1", "class 2"],
        ["7 up", "coca-cola", "12 monkeys"],
        ["0", "1", "2"],
        ["1st class", "2nd class"],
        ["rock 'n'", "O'Hara's", "a: b, c"],
        ["T-shirt/top", "C++", "C#", "(other)"],
    ],
)
def test_lines_that_look_odd_are_labels(tmp_path: Path, lines: list[str]) -> None:
    labels = read_labels(written(tmp_path, "x.txt", "\n".join(lines)))
    assert labels == tuple(Label(str(index), line) for index, line in enumerate(lines))
