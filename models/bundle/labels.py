"""Class labels: read from a TSV, JSON or plain text file, written and read as a bundle's labels.json."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import quoted
from .strict_json import MAX_JSON_BYTES, parse_json

MAX_LABEL_CHARS = 1000


@dataclass(frozen=True)
class Label:
    """One class: `id` names it for programs (such as n01440764), `label` for people (tench)."""

    id: str
    label: str


def default_labels(num_classes: int) -> tuple[Label, ...]:
    """Labels for a model without labels: id "17", label "class 17"."""
    return tuple(Label(str(index), f"class {index}") for index in range(num_classes))


def read_labels(path: str | Path) -> tuple[Label, ...]:
    """Read labels from a file, by its ending.

    `.tsv`: a line `index<TAB>id<TAB>label` (any order of lines, indices 0..n-1) or `id<TAB>label`;
    `.json`: `[{"id", "label"}, ...]` or `["label", ...]`; anything else: one label a line. Without
    an id, the index is the id.

    Raises:
        ValueError: a file that cannot be read or parsed; the message names it and the line.
    """
    path = Path(path)
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path}: cannot read labels: {error.strerror}") from None
    try:
        if path.suffix.lower() == ".json":
            return parse_labels(parse_json(data))
        lines = _lines(data)
        return _from_tsv(lines) if path.suffix.lower() == ".tsv" else _from_text(lines)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def parse_labels(document: Any) -> tuple[Label, ...]:
    """Read the labels of a parsed labels.json.

    Raises:
        ValueError: not a list of {"id", "label"} or of strings, or a text that is empty or too long.
    """
    if not isinstance(document, list) or not document:
        raise ValueError(f"labels must be a list with at least one entry, not {quoted(document, 40)}")
    return tuple(_from_entry(index, entry) for index, entry in enumerate(document))


def labels_document(labels: Sequence[Label]) -> list[dict[str, str]]:
    """The content of labels.json."""
    return [{"id": label.id, "label": label.label} for label in labels]


def _from_entry(index: int, entry: Any) -> Label:
    if isinstance(entry, str):
        return _checked(f"entry {index}", str(index), entry)
    if not isinstance(entry, dict) or set(entry) != {"id", "label"}:
        raise ValueError(f'entry {index} must be {{"id", "label"}}, not {quoted(entry)}')
    return _checked(f"entry {index}", entry["id"], entry["label"])


def _lines(data: bytes) -> list[str]:
    if len(data) > MAX_JSON_BYTES:
        raise ValueError(f"more than {MAX_JSON_BYTES} bytes of labels")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    return text.rstrip("\r\n").split("\n") if text.strip() else []


def _from_text(lines: list[str]) -> tuple[Label, ...]:
    if not lines:
        raise ValueError("no labels in the file")
    return tuple(_checked(f"line {index + 1}", str(index), line.strip()) for index, line in enumerate(lines))


def _from_tsv(lines: list[str]) -> tuple[Label, ...]:
    by_index: dict[int, Label] = {}
    for number, line in enumerate(lines, 1):
        fields = [field.strip() for field in line.split("\t")]
        if len(fields) == 2:
            fields = [str(number - 1), *fields]
        if len(fields) != 3 or not fields[0].isdecimal():
            raise ValueError(f"line {number} must be index, id and label with tabs between, not {quoted(line)}")
        index = int(fields[0])
        if index in by_index:
            raise ValueError(f"line {number}: index {index} appears twice")
        by_index[index] = _checked(f"line {number}", fields[1], fields[2])
    missing = next((index for index in range(len(by_index)) if index not in by_index), None)
    if missing is not None or not by_index:
        raise ValueError(f"{len(by_index)} labels, but none for index {missing or 0}")
    return tuple(by_index[index] for index in range(len(by_index)))


def _checked(where: str, id: Any, label: Any) -> Label:
    for name, text in (("id", id), ("label", label)):
        if not isinstance(text, str) or not 0 < len(text) <= MAX_LABEL_CHARS or "\n" in text:
            raise ValueError(f"{where}: {name} must be 1 to {MAX_LABEL_CHARS} characters, not {quoted(text)}")
    return Label(id, label)
