"""Writes the answers of `milkweed classify` one by one as they come: as text, CSV, NDJSON, or one JSON object.

NDJSON and CSV files can be resumed. An image's lines go in one write, so that at most the last ones are torn.
"""

import csv
import io
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any, Literal, Self, get_args

from ...models.errors import printable
from ..errors import WRONG_USAGE, CommandError, one_line
from ..output import note, print_json

if TYPE_CHECKING:
    from ...client import Answer

OutputKind = Literal["text", "csv", "json", "ndjson", "parquet"]
KINDS: tuple[OutputKind, ...] = get_args(OutputKind)
RESUMED: tuple[OutputKind, ...] = ("csv", "ndjson")
NOT_RESUMED = "--resume goes with --output FILE, as csv or ndjson"
COLUMNS = ("image", "rank", "index", "id", "label", "score", "error", "message")
"""The columns of a CSV. It has a row for each class of an image, best first; an image without an answer has one row."""

_SUFFIXES: dict[str, OutputKind] = {".jsonl": "ndjson", **{f".{kind}": kind for kind in KINDS if kind != "text"}}


def kind_of(format: str | None, output: Path | None, json: bool) -> OutputKind:
    """Choose the format that is named, or else by the suffix of the file.

    Raises:
        CommandError: there is no such format, or two are named.
    """
    if json and format not in (None, "json"):
        raise CommandError(f"--json does not go with --format {format}", WRONG_USAGE)
    if json:
        return "json"
    if format is None:
        return "text" if output is None else _SUFFIXES.get(output.suffix.lower(), "text")
    for kind in KINDS:
        if kind == format:
            return kind
    raise CommandError(f"--format {format}: must be one of {', '.join(KINDS)}", WRONG_USAGE)


class Answers(ABC):
    """Counts what is written. A context manager; files are whole at its end."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.count = self.failed = 0
        self.first_failure = ""

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Finish the file, or what is left of it behind an error."""

    @property
    def resumable(self) -> bool:
        """Whether a later run can go on with what is written."""
        return False

    @abstractmethod
    def add(self, image: str, answer: "Answer") -> None:
        """Take the next answer."""

    def note(self, image: str, code: str = "", message: str = "") -> None:
        """Count an answer, or the error of an image that got none."""
        self.count += 1
        if code:
            self.failed += 1
            self.first_failure = self.first_failure or f"{image}: {code}: {message}"


class AnswerFile(Answers):
    """Writes answers, and knows which ones it holds from an earlier run.

    Args:
        output: the file; None is stdout.
        resume: go on with `output` where it exists already.

    Raises:
        CommandError: `output` exists and `resume` is off, or it holds something else.
    """

    def __init__(self, kind: OutputKind, output: Path | None, resume: bool = False) -> None:
        super().__init__()
        if resume and (output is None or kind not in RESUMED):
            raise CommandError(NOT_RESUMED, WRONG_USAGE)
        if output is not None and output.exists() and not resume:
            more = "; --resume goes on with it" if kind in RESUMED else ""
            raise CommandError(f"--output {output}: exists already{more}")
        self._kind: OutputKind = kind
        self._output, self._whole = output, 0
        self._new = output is not None and not output.exists()
        self._held_identity: dict[str, str] = {}
        self._identity: dict[str, str] = {}
        self._results: list[dict[str, Any]] = []
        self._file: IO[str] | None = None
        # A progress bar replaces sys.stdout while it is drawn: right on a terminal, but a pipe would lose its lines.
        self._stdout = None if sys.stdout.isatty() else sys.stdout
        if output is not None and output.exists():
            try:
                self._whole = self._read(output)
            except ValueError as error:
                raise CommandError(f"--output {output}: {error}: not written by this command, not resumed") from None

    def __enter__(self) -> Self:
        if self._output is not None:
            # Names of files may hold bytes that are not UTF-8.
            self._file = open(self._output, "a", encoding="utf-8", errors="surrogateescape", newline="")
            self._file.truncate(self._whole)
        if self._kind == "csv" and not self._whole:
            self._write(_csv([COLUMNS]))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._kind == "json" and kind is None:
            document = {**self._identity, "results": self._results}
            if self._file is None:
                print_json(document)
            else:
                self._write(json.dumps(document, indent=2) + "\n")
        if self._file is not None:
            self._file.close()
        if self._output is not None and self._new and kind is not None and (not self.count or self._kind == "json"):
            self._output.unlink(missing_ok=True)  # it is empty, and the next try would refuse it

    @property
    def resumable(self) -> bool:
        """Whether a later run can go on with what is written."""
        return self._output is not None and self._kind in RESUMED

    def add(self, image: str, answer: "Answer") -> None:
        """Write the next answer; it is in the file when this returns."""
        if not self._identity:
            self._identity = identity_of(answer)
            if self._identity and self._held_identity not in ({}, self._identity):
                identities = (self._held_identity, self._identity)
                before, after = (one_line(" ".join(identity.values())) for identity in identities)
                note(f"{self._output} is from here on by {after}, before by {before}")
        result = result_of(answer)
        self.note(image, **result.get("error", {}))
        if self._kind == "json":
            self._results.append({"image": image, **result})
        elif self._kind == "ndjson":
            self._write(json.dumps({"image": image, **identity_of(answer), **result}) + "\n")
        else:
            self._write(_csv(rows_of(image, result)) if self._kind == "csv" else _text(image, result))

    def _write(self, text: str) -> None:
        if self._file is None and isinstance(self._stdout, io.TextIOWrapper):
            self._stdout.buffer.write(text.encode("utf-8", "surrogateescape"))  # as in a file, whatever the locale
            text = ""
        print(text, end="", file=self._file or self._stdout, flush=True)

    def _read(self, output: Path) -> int:
        """Take in what an earlier run wrote; the bytes of it that are whole."""
        with open(output, "rb") as file:
            lines = _Lines(file)
            if self._kind == "ndjson":
                for line in lines:
                    image, error, identity = _ndjson_result(line)
                    self._take(image, error)
                    self._held_identity = identity or self._held_identity
                whole = lines.bytes
            else:
                whole = self._read_csv(lines)
            # All that an end may tear is one of our lines; a file without a whole one may be anybody's.
            begins = (_csv([COLUMNS]) if self._kind == "csv" else '{"image": "').encode()
            torn = lines.torn
            if not lines.bytes and not (torn.startswith(begins) or begins.startswith(torn)):
                raise ValueError("it does not begin like answers")
            return whole

    def _read_csv(self, lines: "_Lines") -> int:
        """Take in all but the last image, whose rows may not all be there; return the bytes that are kept."""
        begins, last, error = 0, "", None
        whole = 0
        for place, row in enumerate(_csv_rows(lines)):
            if len(row) != len(COLUMNS) or (place == 0) != (tuple(row) == COLUMNS):
                raise ValueError(f"line {place + 1} is not {','.join(COLUMNS)}")
            if place and row[0] != last:
                if last:
                    self._take(last, error)
                begins, last = whole, row[0]
            if place and row[6]:
                error = {"code": row[6], "message": row[7]}
            elif place:
                error = None
            whole = lines.bytes
        return begins if last else whole

    def _take(self, image: str, error: Mapping[str, str] | None) -> None:
        self.held.add(image)
        self.note(image, **error or {})


class _Lines:
    """Iterates over the whole lines of a file; counts their bytes, and keeps the last line where it is torn."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.bytes, self.torn = file, 0, b""

    def __iter__(self) -> Iterator[str]:
        for line in self._file:
            if line.endswith(b"\n"):
                self.bytes += len(line)
                yield line.decode("utf-8", "surrogateescape")
            else:
                self.torn = line


def _csv_rows(lines: _Lines) -> Iterator[list[str]]:
    """Read the rows that are whole; the last one may be torn within quotes.

    Raises:
        ValueError: lines that are no rows stand before others.
    """
    left = iter(lines)
    reader = csv.reader(left, strict=True)
    try:
        yield from reader
    except csv.Error as error:
        if next(left, None) is not None:
            raise ValueError(f"line {reader.line_num}: {error}") from None


def _ndjson_result(line: str) -> tuple[str, Mapping[str, str] | None, dict[str, str]]:
    """Read an image's name, its error, and which model answered."""
    try:
        record = json.loads(line)
        image, error = record["image"], record.get("error")
        if not isinstance(image, str) or not {"error", "predictions", "embedding"} & set(record):
            raise TypeError
        identity = {name: str(record[name]) for name in ("model", "version") if name in record}
        return image, error and {"code": str(error["code"]), "message": str(error["message"])}, identity
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{one_line(line)[:60]!r} is no answer") from None


def identity_of(answer: "Answer") -> dict[str, str]:
    return {"model": answer.model, "version": answer.version} if answer.model else {}


def result_of(answer: "Answer") -> dict[str, Any]:
    """Return an answer in the shape of the server's JSON."""
    if answer.error is not None:
        return {"error": {"code": answer.error.code, "message": answer.error.message}}
    if answer.embedding is not None:
        import numpy as np

        from ...inference.results import shortest

        return {"embedding": shortest(np.asarray(answer.embedding, np.float32))}
    sure = {} if answer.sure is None else {"sure": answer.sure}
    return {"predictions": [asdict(prediction) for prediction in answer.predictions], **sure}


def rows_of(image: str, result: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    if "error" in result:
        yield (image, *[""] * 5, result["error"]["code"], result["error"]["message"])
        return
    if not result["predictions"]:
        yield (image, *[""] * 7)
    for rank, prediction in enumerate(result["predictions"], 1):
        yield (image, rank, prediction["index"], prediction["id"], prediction["label"], prediction["score"], "", "")


def _csv(rows: Any) -> str:
    # Before Python 3.13 a carriage return in a name is put in quotes only where lines end with one.
    out: list[str] = []
    csv.writer(SimpleNamespace(write=out.append), lineterminator="\r\n").writerows(rows)
    return "".join(row.removesuffix("\r\n") + "\n" for row in out)


def _text(image: str, result: dict[str, Any]) -> str:
    lines = [printable(image) + (" (not sure)" if result.get("sure") is False else "")]
    if "error" in result:
        lines.append(f"  {result['error']['code']}: {one_line(result['error']['message'])}")
    elif not result["predictions"]:
        lines.append("  no class above the threshold")
    for prediction in result.get("predictions", ()):
        name = "" if prediction["id"] == str(prediction["index"]) else f" ({prediction['id']})"
        lines.append(f"  {prediction['score']:7.4f}  {printable(prediction['label'] + name)}")
    return "".join(f"{line}\n" for line in lines)
