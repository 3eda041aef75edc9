"""Class labels: read from a TSV, JSON or plain text file, written and read as a bundle's labels.json."""

import ast
import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import quoted, stand_in
from .strict_json import MAX_JSON_BYTES, parse_json

MAX_LABEL_CHARS = 1000

_MEMBERS = ("id2label", "label2id", "class_to_idx", "idx_to_class")
"""Members of other programs' files that hold labels by index, or indices by label."""

_HEAD = re.compile(r"(class_?)?(index|idx|id|name)s?|class(es)?|labels?", re.IGNORECASE)
_NOT_READ = frozenset((".yaml", ".yml", ".toml", ".xml", ".html", ".pbtxt", ".py", ".pkl"))
_WORDNET = re.compile(r"(n\d{8})(?:[\s,;:]+(.+))?")
_INDEX_FIRST = re.compile(r"(?P<index>\d+)\s*[\s:,;=]\s*(?P<label>.+)")
_INDEX_LAST = re.compile(r"(?P<label>.+?)\s*[:,;=]\s*(?P<index>\d+)")
_OTHER_FORMAT = re.compile(r"""[\[{<#].*|.*[\[{]|[\])}]+[,;]?|- .*|\w+:|\w+\s*=\s*[\[{(].*|[\d\s:,=]*(["']).*\1[,;]?""")
"""Lines of JSON, Python, YAML, XML, protobuf's text and quoted CSV."""


@dataclass(frozen=True)
class Label:
    """One class: `id` names it for programs (such as n01440764), `label` for people (tench)."""

    id: str
    label: str


def default_labels(num_classes: int) -> tuple[Label, ...]:
    """Labels for a model without labels: id "17", label "class 17"."""
    return tuple(Label(str(index), f"class {index}") for index in range(num_classes))


def read_labels(path: str | Path) -> tuple[Label, ...]:
    """Read labels from a file, by its ending and its content.

    `.json` and what begins as JSON or as a Python dict: a list of labels or of {"id", "label"}; an object by index
    (`{"0": "tench"}`, `{"0": ["n01440764", "tench"]}`) or of indices (`{"tench": 0}`), or a config.json that holds one.
    `.csv`, `.tsv`: index, id and label, two of them, or in a CSV the label alone, with a head or without. Anything
    else: one label a line, with its index or its WordNet id before it in every line or in none. Without an id, the
    index is the id.

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
        return _from_file(path.suffix.lower(), data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _from_file(suffix: str, data: bytes) -> tuple[Label, ...]:
    lines = _lines(data)
    problem = stand_in(data) or (f"{suffix} is not read" if suffix in _NOT_READ else None)
    if problem:
        raise ValueError(f"no labels: {problem} (one label a line, .csv, .tsv or .json)")
    text = "\n".join(lines).strip()
    if suffix == ".json" or text.startswith(("{", "[")):
        return _from_document(_parsed(text, suffix))
    if suffix == ".tsv":
        return _from_rows([line.split("\t") for line in lines])
    if suffix == ".csv":
        try:
            between = ";" if all(";" in line for line in lines) else ","
            return _from_rows(list(csv.reader(lines, delimiter=between, skipinitialspace=True, strict=True)), least=1)
        except csv.Error as error:
            raise ValueError(f"not CSV: {error}") from None
    return _from_text([line.strip() for line in lines])


def _parsed(text: str, suffix: str) -> Any:
    """The value of JSON, or of a Python dict or list as people print it into a text file."""
    try:
        return parse_json(text.encode())
    except ValueError:
        if suffix == ".json":
            raise
    try:
        node = ast.parse(text, mode="eval").body
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise ValueError("begins as JSON or as a Python dict, and is neither") from None
    if not isinstance(node, ast.Dict):
        return value
    if len(value) < len(node.keys):
        raise ValueError("a key of the Python dict appears twice")
    return {str(key): label for key, label in value.items()}


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


def _from_document(document: Any) -> tuple[Label, ...]:
    """Labels as other programs write them in JSON: a list, by index, or an index by label."""
    if isinstance(document, dict):
        document = next((document[name] for name in _MEMBERS if isinstance(document.get(name), dict)), document)
    if not isinstance(document, dict):
        return parse_labels(document)
    indices = bool(document) and all(type(index) is int for index in document.values())
    pairs = [(str(index), label) for label, index in document.items()] if indices else document.items()
    return _in_order([(quoted(index), index, _identified(index, label)) for index, label in pairs])


def _from_text(lines: list[str]) -> tuple[Label, ...]:
    if not lines:
        raise ValueError("no labels in the file")
    odd = next((number for number, line in enumerate(lines, 1) if _OTHER_FORMAT.fullmatch(line)), None)
    if odd is not None:
        raise ValueError(f"line {odd} is of another format, no label: {quoted(lines[odd - 1])}")
    if all("\t" in line for line in lines):
        return _from_rows([line.split("\t") for line in lines])
    for pattern in (_INDEX_FIRST, _INDEX_LAST):
        parts = [pattern.fullmatch(line) for line in lines]
        if all(parts):
            pairs = enumerate([(match["index"], match["label"]) for match in parts if match], 1)
            return _in_order([(f"line {number}", pair[0], _identified(*pair)) for number, pair in pairs])
    if all(map(_WORDNET.fullmatch, lines)):
        return tuple(_identified(str(index), line) for index, line in enumerate(lines))
    return tuple(_checked(f"line {index + 1}", str(index), line) for index, line in enumerate(lines))


def _identified(index: str, label: Any) -> Label:
    """The label of an id and a text, or of a text that may begin with its WordNet id; else the index is the id."""
    if isinstance(label, list | tuple) and len(label) == 2:
        return _checked(f"index {index}", *label)
    match = _WORDNET.fullmatch(label) if isinstance(label, str) else None
    return _checked(f"index {index}", *((match[1], match[2] or match[1]) if match else (index, label)))


def _from_rows(rows: list[list[str]], least: int = 2) -> tuple[Label, ...]:
    """Labels of a table: index, id and label; id and label; index and label in any order; or the label alone."""
    rows = [[field.strip() for field in row] for row in rows]
    numbers = [bool(row) and row[0].isdecimal() for row in rows]
    headed = rows and (all(map(_HEAD.fullmatch, rows[0])) or (not numbers[0] and all(numbers[1:])))
    first = int(bool(headed and len(rows) > 1))
    width, indexed = len(rows[first]) if rows else 0, all(numbers[first:])
    swapped = not indexed and width == 2 and all(row[-1:] and row[-1].isdecimal() for row in rows[first:])
    named = []
    for number, row in enumerate(rows[first:], 1 + first):
        if len(row) != width or not least <= width <= 2 + indexed:
            raise ValueError(f"line {number} must be index, id and label, or two of them, not {quoted(row)}")
        index, *texts = row[::-1] if swapped else row if indexed and width > 1 else [str(number - 1 - first), *row]
        named.append((f"line {number}", index, _checked(f"line {number}", texts[0] if texts[1:] else index, texts[-1])))
    return _in_order(named)


def _in_order(labels: Sequence[tuple[str, str, Label]]) -> tuple[Label, ...]:
    """The labels of places in the file, indices and labels; the indices must be 0, 1, 2 and so on, in any order."""
    by_index: dict[int, Label] = {}
    for where, index, label in labels:
        if not (index.isascii() and index.isdecimal()):
            raise ValueError(f"{where}: labels are expected by index, {quoted(index)} is none")
        if int(index) in by_index:
            raise ValueError(f"{where}: index {int(index)} appears twice")
        by_index[int(index)] = label
    missing = next((index for index in range(len(by_index)) if index not in by_index), None)
    if missing is not None or not by_index:
        raise ValueError(f"{len(by_index)} labels, but none for index {missing or 0}")
    return tuple(by_index[index] for index in range(len(by_index)))


def _checked(where: str, id: Any, label: Any) -> Label:
    for name, text in (("id", id), ("label", label)):
        if not isinstance(text, str) or not 0 < len(text) <= MAX_LABEL_CHARS or "\n" in text:
            raise ValueError(f"{where}: {name} must be 1 to {MAX_LABEL_CHARS} characters, not {quoted(text)}")
    return Label(id, label)
