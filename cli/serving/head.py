"""`milkweed head` makes heads, linear classifiers on a model's embedding: of labelled images, or of text embeddings."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...models.intervals import share_interval
from ..bundle_args import DEMO, bundle_path
from ..errors import WRONG_USAGE, CommandError
from ..help import page
from ..options import DeviceOption, Json, decimal_option, text_option
from ..output import note, print_fields, print_json
from ..progress import progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...loaders.dataset.training import Sample
    from ...models.heads.embedding_head import EmbeddingHead


def new_file(text: str) -> Path:
    """A path where nothing is yet. Raises CommandError."""
    if Path(text).exists():
        raise CommandError(f"--out {text}: exists already")
    return Path(text)


ClassFolders = Annotated[Path, typer.Argument(metavar="DIR", help="One folder of images a class.", show_default=False)]
TextEmbeddings = Annotated[
    Path, typer.Argument(metavar="TEXTS", help="Embeddings of the classes, .npy.", show_default=False)
]
HeadFile = Annotated[Path, text_option("FILE", "The new head, a safetensors file.", parser=new_file)]
Embedder = Annotated[str, text_option("BUNDLE", "Whose embeddings it will take.")]
MethodOption = Annotated[str, text_option("ridge|means|knn", "Ridge regression, cosines to means, or nearest images.")]
ClassNames = Annotated[Path, text_option("FILE", "Class labels: .tsv (index, id, label), .json, or one a line.")]
ScaleOption = Annotated[float, decimal_option("Of cosines before the softmax: e to the power of CLIP's logit_scale.")]


def head_app() -> typer.Typer:
    """Build the group of commands."""
    app = typer.Typer(
        help="Make heads for `milkweed serve --heads MODEL.HEAD=FILE`.\n\n"
        "\b\nExample:\n  milkweed head fit birds/ --model ./dino --out birds.head.safetensors",
        rich_markup_mode=None,
    )
    app.command("fit", cls=page())(fit)
    app.command("make", cls=page())(make)
    return app


def fit(
    images: ClassFolders,
    out: HeadFile,
    model: Embedder = DEMO,
    method: MethodOption = "ridge",
    device: DeviceOption = None,
    json: Json = False,
) -> None:
    """Fit a head to labelled images, without a gradient.

    It prints the leave-one-out accuracy, and the ends of its 95 % interval. Images that cannot be read are named and
    left out; of each class two are needed.

    \b
    Example:
      milkweed head fit birds/ --model ./dino --out birds.head.safetensors
    """
    from ...jobs.dataset import class_labels, labelled_images
    from ...models.heads.embedding_head import normalized
    from ...models.heads.fit import METHODS

    if method not in METHODS:
        raise CommandError(f"--method {method}: must be one of {', '.join(METHODS)}", WRONG_USAGE)
    started, labels = time.perf_counter(), class_labels(images)
    samples = labelled_images(images, labels).samples
    rows, targets, version = _embeddings(samples, model, device)
    if few := [label.id for place, label in enumerate(labels) if (targets == place).sum() < 2]:
        raise CommandError(f"DIR {images}: fewer than two images that can be read of {', '.join(few[:5])}")
    made, total = METHODS[method](normalized(rows), targets), len(targets)
    right = int((made.left_out.argmax(1) == targets).sum())
    figures = {
        "images": total,
        "skipped": len(samples) - total,
        "leave_one_out": round(right / total, 4),
        "interval_95": [round(end, 4) for end in share_interval(right, total)],
        "seconds": round(time.perf_counter() - started, 1),
    }
    (print_json if json else print_fields)({**_write(out, made.head(labels, version)), **figures})


def make(texts: TextEmbeddings, names: ClassNames, out: HeadFile, scale: ScaleOption = 100, json: Json = False) -> None:
    """Make a head of text embeddings, one a class.

    The model's own must be what these are compared with.

    \b
    Example:
      milkweed head make labels.npy --names labels.txt --out zoo.head.safetensors
    """
    import numpy as np

    from ...models.bundle.labels import read_labels
    from ...models.heads.embedding_head import EmbeddingHead, normalized

    labels = read_labels(names)
    try:
        with open(texts, "rb") as file:
            weight = normalized(np.lib.format.read_array(file, allow_pickle=False))
        head = EmbeddingHead(weight=weight, bias=np.zeros(len(weight)), scale=scale, labels=labels)
    except (OSError, ValueError, TypeError) as error:
        raise CommandError(f"TEXTS {texts}: {error}") from None
    (print_json if json else print_fields)(_write(out, head))


def _write(out: Path, head: "EmbeddingHead") -> dict[str, Any]:
    """Write a head, if a server will accept it; what it is."""
    from ...models.heads.embedding_head import parse_head

    data = head.to_bytes()
    try:
        version = parse_head(data).version
    except ValueError as error:
        raise CommandError(f"--out {out}: {error}") from None
    with open(out, "xb") as file:
        file.write(data)
    return {"head": str(out), "version": version, "classes": len(head.labels), "width": head.width}


def _embeddings(samples: "Sequence[Sample]", bundle: str, device: str | None) -> tuple[Any, Any, str]:
    """The embeddings (n, width) of the images that can be read, their classes (n,), and the version of the model."""
    import numpy as np

    from ...local import open_local

    rows, targets = [], []
    with open_local(bundle_path(bundle), device) as model, progress("embed", "images") as update:
        answers = model.stream((sample.path for sample in samples), embedding=True)
        for place, (sample, answer) in enumerate(zip(samples, answers, strict=True), 1):
            if answer.error is None:
                rows.append(answer.embedding)
                targets.append(sample.target)
            else:
                note(f"{sample.path}: left out: {answer.error}")
            update(place, len(samples))
        return np.array(rows), np.array(targets, int), model.version
