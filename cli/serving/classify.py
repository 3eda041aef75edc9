"""`milkweed classify` classifies images, by a bundle in this process or by a running server."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..bundle_args import DEMO, bundle_path
from ..errors import FAILED, WRONG_USAGE, CommandError
from ..options import DeviceOption, Json, decimal_option, number_option, text_option
from ..output import note
from ..progress import Update, progress
from .bulk_inputs import Content, holds_images
from .classify_inputs import images_of, named_images
from .classify_output import KINDS, AnswerFile, Answers, kind_of
from .parquet_output import ParquetFile

if TYPE_CHECKING:
    from ...client import Answer
    from ...client.requests import ClassifyOptions

ImageArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="IMAGE...",
        help="Image files, folders of them, quoted patterns, tars, Parquet tables, URLs of them; - is stdin.",
    ),
]
ColumnOption = Annotated[str, text_option("NAME", "Of Parquet tables: the column with the images.")]
FromFile = Annotated[str | None, text_option("FILE", "More images, one a line or with NUL between; - is stdin.")]
Url = Annotated[str | None, text_option("URL", "Of a running server, which classifies.")]
ModelOption = Annotated[
    str | None,
    text_option(
        "BUNDLE|NAME",
        "This bundle, in this process (the demo model if not given); with --url one of the server's models.",
    ),
]
TopK = Annotated[int | None, number_option("Classes an answer. [5]")]
Threshold = Annotated[float, decimal_option("Least score of an answer's classes, 0 to 1.")]
HeadOption = Annotated[str | None, text_option("NAME", "With --url: a head of the model, which answers in its place.")]
FormatOption = Annotated[str | None, text_option("|".join(KINDS), "Of the answers; by the name of --output, or text.")]
Output = Annotated[Path | None, text_option("FILE", "Where the answers go; stdout if not given.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with --output, csv or ndjson: images that it holds are skipped.")
]

Shrink = Annotated[
    bool,
    typer.Option("--shrink", help="With --url: scale large photographs before they are sent; answers differ a little."),
]

TIMEOUT_SECONDS = 120.0
"""The most time for one request; the client waits for a server that is busy."""

Classifier = Callable[[Iterator[Content]], "Iterator[Answer]"]


def classify(
    images: ImageArguments = None,
    from_file: FromFile = None,
    url: Url = None,
    model: ModelOption = None,
    top_k: TopK = None,
    threshold: Threshold = 0.0,
    head: HeadOption = None,
    device: DeviceOption = None,
    shrink: Shrink = False,
    format: FormatOption = None,
    output: Output = None,
    resume: Resume = False,
    column: ColumnOption = "image",
    json: Json = False,
) -> None:
    """Classify images, by a bundle or a running server.

    A folder, a tar, a table or a URL that ends with / stands for all images in it, a numpy array (.npy) with a batch
    axis for all along it. Answers come as they are found. The exit code is 1 if any image got no answer.
    MILKWEED_API_KEY is the key for --url.

    \b
    Example:
      milkweed classify dog.jpg ./holiday --top-k 3
      milkweed classify ./archive --url http://gpu:8000 --output a.csv --resume
      milkweed classify s3://bucket/photos/ --output a.parquet
    """
    asked = asked_of_each(top_k, threshold, url, device, shrink, head)
    names = named_images(images or [], from_file)
    kind = kind_of(format, output, json)
    answers = ParquetFile(output, resume) if kind == "parquet" else AnswerFile(kind, output, resume)
    how: Any = {"url": url, "model": model, "device": device, "shrink": shrink, "output": output, "column": column}
    answer_all(names, answers, asked, **how)


def answer_all(
    names: Sequence[str],
    answers: Answers,
    asked: "ClassifyOptions",
    *,
    url: str | None,
    model: str | None,
    device: str | None,
    shrink: bool,
    output: Path | None,
    column: str,
    task: str = "classify",
) -> None:
    """Answer the images that `answers` does not hold yet, by a bundle, or by a running server where there is a URL.

    Raises:
        CommandError: images got no answer: how many, and why the first did not.
    """
    left = [name for name in names if name not in answers.held]
    if answers.held:
        note(f"{output} holds {answers.count} answers: {len(left)} of {len(names)} images are left")
    if left:
        several = len(left) > 1 or holds_images(left[0])
        opened = _bundle(model, device, asked) if url is None else _server(url, model, asked, several, shrink)
        with opened as classifier, answers, progress(task, "images") as update:
            _answer(left, column, classifier, answers, update)
    if answers.failed:
        first = f"{answers.failed} of {answers.count} images got no answer, the first: " if answers.count > 1 else ""
        raise CommandError(first + answers.first_failure, FAILED)


def asked_of_each(
    top_k: int | None, threshold: float, url: str | None, device: str | None, shrink: bool, head: str | None = None
) -> "ClassifyOptions":
    """Return what is asked of each image; refuse options that do not go together, and a threshold that cannot be."""
    if threshold > 1:
        raise CommandError(f"--threshold {threshold:g}: must be 0 to 1", WRONG_USAGE)
    if url is not None and device is not None:
        raise CommandError("--url has a server classify: --device does not go with it", WRONG_USAGE)
    if shrink and url is None:
        raise CommandError("--shrink is for what is sent: it goes with --url", WRONG_USAGE)
    if head is not None and url is None:
        raise CommandError("--head is for a server's heads: it goes with --url", WRONG_USAGE)
    return {"top_k": top_k, "threshold": threshold or None, "head": head}  # older servers know no threshold


def _answer(names: Sequence[str], column: str, classifier: Classifier, answers: Answers, update: Update) -> None:
    """Read images, classify them and write the answers; only the images in flight are held."""
    pending: deque[str] = deque()
    done = read = 0
    total = len(names)

    def contents() -> Iterator[Content]:
        nonlocal read, total
        for name, content in images_of(names, column):
            read += 1
            total = max(total, read)
            if name not in answers.held:
                pending.append(name)
                yield content

    try:
        for answer in classifier(contents()):
            answers.add(pending.popleft(), answer)
            done += 1
            update(done, total)
    except BaseException:
        if answers.resumable and done:
            note(f"{done} more answers are kept: the same command with --resume goes on")
        raise


@contextmanager
def _server(url: str, model: str | None, asked: "ClassifyOptions", several: bool, shrink: bool) -> Iterator[Classifier]:
    from ...client import BadAnswer, Client, MilkweedError, NoAnswer
    from ...client.requests import base_url

    try:
        server = base_url(url)
    except ValueError as error:
        raise CommandError(f"--url {error}", WRONG_USAGE) from None
    with Client(server, timeout=TIMEOUT_SECONDS, shrink=shrink) as client:
        try:
            # Nobody waits for a single one of many images.
            options: ClassifyOptions = {**asked, "model": model, "priority": "bulk" if several else None}
            yield lambda images: client.stream(images, **options)
        except MilkweedError as error:
            what = error.message if isinstance(error, NoAnswer | BadAnswer) else str(error)
            raise CommandError(f"--url {url}: {what}") from error


@contextmanager
def _bundle(path: str | None, device: str | None, asked: "ClassifyOptions") -> Iterator[Classifier]:
    """Open a bundle as a server does; images go through the same pipeline as over HTTP."""
    from ...local import open_local

    top_k, threshold = asked["top_k"], asked["threshold"] or 0.0
    with open_local(bundle_path(path or DEMO), device) as model:
        embedding = asked.get("embedding", False)
        if top_k is not None and top_k > model.num_classes and not embedding:
            raise CommandError(f"--top-k {top_k}: the model has {model.num_classes} classes", WRONG_USAGE)
        if embedding and not model.embedding_width:
            raise CommandError(f"bundle {path or DEMO}: the backend that computes it gives no embedding")
        yield lambda images: model.stream(images, top_k, threshold, embedding=embedding)
