"""`milkweed embed` writes the embeddings of images, by a bundle in this process or by a running server."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import WRONG_USAGE, CommandError
from ..options import DeviceOption
from .classify import ColumnOption, FromFile, ImageArguments, ModelOption, Shrink, Url, answer_all, asked_of_each
from .classify_inputs import named_images
from .classify_output import AnswerFile, Answers
from .parquet_output import EmbeddingTable

if TYPE_CHECKING:
    from ...client import Answer
    from ...client.requests import ClassifyOptions

OutputFile = Annotated[
    Path | None,
    typer.Option(
        "--output", metavar="FILE", help="FILE.npy, FILE.parquet or FILE.ndjson; NDJSON on stdout if not given."
    ),
]
ResumeLines = Annotated[
    bool, typer.Option("--resume", help="Go on with --output FILE.ndjson: images that it holds are skipped.")
]


def embed(
    images: ImageArguments = None,
    from_file: FromFile = None,
    url: Url = None,
    model: ModelOption = None,
    device: DeviceOption = None,
    shrink: Shrink = False,
    output: OutputFile = None,
    resume: ResumeLines = False,
    column: ColumnOption = "image",
) -> None:
    """Write the embeddings of images: what a model's classifier reads.

    NDJSON has a line an image, FILE.parquet a row. FILE.npy has a row an image, in the order of FILE.txt, which names
    them; the row of an image without an embedding is not-a-number, and the exit code 1.

    \b
    Example:
      milkweed embed ./holiday --model ./dino --output holiday.npy
      milkweed embed ./archive --url http://gpu:8000 --output a.ndjson --resume
    """
    asked: ClassifyOptions = {**asked_of_each(1, 0.0, url, device, shrink), "embedding": True}
    files: dict[str, Any] = {".npy": EmbeddingArray, ".parquet": EmbeddingTable}
    kind = files.get(output.suffix.lower()) if output is not None else None
    answers: Answers = AnswerFile("ndjson", output, resume) if kind is None else kind(output, resume)
    names = named_images(images or [], from_file)
    how: Any = {"url": url, "model": model, "device": device, "shrink": shrink, "output": output, "column": column}
    answer_all(names, answers, asked, **how, task="embed")


class EmbeddingArray(Answers):
    """Writes embeddings as the rows of a NumPy file, and their names beside it; both when all are there.

    Raises:
        CommandError: one of the files exists.
    """

    def __init__(self, output: Path, resume: bool) -> None:
        super().__init__()
        if resume:
            raise CommandError("--resume goes with --output FILE.ndjson", WRONG_USAGE)
        self._output, self._names = output, output.with_suffix(".txt")
        for file in (self._output, self._names):
            if file.exists():
                raise CommandError(f"--output {output}: {file} exists already")
        self._rows: list[tuple[str, Any]] = []

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._write()

    def add(self, image: str, answer: "Answer") -> None:
        """Take the next answer."""
        self.note(image, *(() if answer.error is None else (answer.error.code, answer.error.message)))
        self._rows.append((image, answer.embedding))

    def _write(self) -> None:
        import numpy as np

        width = max((len(row) for _, row in self._rows if row is not None), default=0)
        values = np.full((len(self._rows), width), np.nan, np.float32)
        for place, (_, row) in enumerate(self._rows):
            if row is not None:
                values[place] = row
        with open(self._output, "xb") as file:
            np.save(file, values)
        with open(self._names, "x", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            file.writelines(f"{name}\n" for name, _ in self._rows)
