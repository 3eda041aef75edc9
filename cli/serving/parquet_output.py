"""Writes the answers of `milkweed classify` and `embed` as Parquet tables, whole at the end."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...kernels.installation import install_command
from ..errors import WRONG_USAGE, CommandError
from .classify_output import COLUMNS, NOT_RESUMED, Answers, identity_of, result_of, rows_of

if TYPE_CHECKING:
    from ...client import Answer

GROUP_ROWS = 8192
"""Rows of a row group, which are held until it is written."""

_TYPES = {"rank": "int32", "index": "int32", "score": "float"}


class ParquetFile(Answers):
    """Writes the rows of a CSV of answers. The model and its version are in the table's metadata.

    Until its end the table has the suffix `.partial`; one that is not finished is removed.

    Args:
        output: the file.
        resume: refused, since a table cannot grow.

    Raises:
        CommandError: the file exists, none is given, or pyarrow is missing.
    """

    def __init__(self, output: Path | None, resume: bool) -> None:
        super().__init__()
        if output is None or resume:
            raise CommandError(NOT_RESUMED if resume else "--format parquet goes with --output FILE", WRONG_USAGE)
        if output.exists():
            raise CommandError(f"--output {output}: exists already")
        try:
            import pyarrow as arrow
        except ImportError as error:
            raise CommandError(f"--output {output}: needs pyarrow: {install_command('bulk')} ({error})") from None
        self._arrow, self._output = arrow, output
        self._partial = output.with_name(output.name + ".partial")
        self._rows: list[tuple[Any, ...]] = []
        self._identity: dict[str, str] = {}

    def __enter__(self) -> "ParquetFile":
        from pyarrow import parquet

        self._schema = self._arrow.schema(self.fields())
        self._writer = parquet.ParquetWriter(self._partial, self._schema)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._write()
            self._writer.add_key_value_metadata(self._identity)
        self._writer.close()
        if kind is None:
            self._partial.replace(self._output)
        else:
            self._partial.unlink()

    def add(self, image: str, answer: "Answer") -> None:
        """Take the next answer."""
        self._identity = self._identity or identity_of(answer)
        self.note(image, *(() if answer.error is None else (answer.error.code, answer.error.message)))
        name = image.encode("utf-8", "backslashreplace").decode()  # names of files may hold bytes that are not UTF-8
        self._rows += self.rows(name, answer)
        if len(self._rows) >= GROUP_ROWS:
            self._write()

    def fields(self) -> list[tuple[str, Any]]:
        """Return the names and types of the columns."""
        return [(name, _TYPES.get(name, "string")) for name in COLUMNS]

    def rows(self, image: str, answer: "Answer") -> list[tuple[Any, ...]]:
        """Return an answer's rows; a value that there is not is None."""
        return [tuple(None if cell == "" else cell for cell in row) for row in rows_of(image, result_of(answer))]

    def _write(self) -> None:
        columns = list(zip(*self._rows, strict=True)) or [()] * len(self._schema)
        self._writer.write_table(self._arrow.table(list(map(list, columns)), schema=self._schema))
        self._rows = []


class EmbeddingTable(ParquetFile):
    """Writes an embedding a row: `image`, `embedding`, and `error` and `message` where there is none."""

    def fields(self) -> list[tuple[str, Any]]:
        """Return the names and types of the columns."""
        floats = self._arrow.list_(self._arrow.float32())
        return [("image", "string"), ("embedding", floats), ("error", "string"), ("message", "string")]

    def rows(self, image: str, answer: "Answer") -> list[tuple[Any, ...]]:
        """Return an answer's row."""
        if answer.error is not None:
            return [(image, None, answer.error.code, answer.error.message)]
        return [(image, answer.embedding, None, None)]
