"""Accuracy of a model over a folder of labelled images, through the very Pipeline that answers requests."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..loaders.errors import InputError
from ..models.labels import Label
from .pipeline import BatchResult, Outcome, Pipeline, Predictions

IMAGE_SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".avif", ".gif", ".bmp", ".dib", ".tif", ".tiff")
) | {".ppm", ".pgm", ".pbm", ".pnm"}
"""Files that are images by name; others in a data set are passed over and counted."""

_SHOWN = 5


class DataError(ValueError):
    """A data set that cannot be evaluated on; the message is one line."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One image and the index of its class."""

    path: Path
    target: int


@dataclass(frozen=True)
class DataSet:
    """The labelled images under a folder.

    Args:
        layout: `class folders` or `labelled files`.
        samples: sorted by path.
        passed_over: files that are no images by name.
    """

    root: Path
    layout: str
    samples: tuple[Sample, ...]
    passed_over: int

    @property
    def classes(self) -> int:
        """Classes that have an image."""
        return len({sample.target for sample in self.samples})

    def limited(self, limit: int) -> tuple[Sample, ...]:
        """At most `limit` samples, evenly spaced, so that few images are still of many classes."""
        count = len(self.samples)
        if limit >= count:
            return self.samples
        return tuple(self.samples[place * count // limit] for place in range(limit))


@dataclass(frozen=True)
class Unreadable:
    """An image that got no answer, and why."""

    path: Path
    code: str
    message: str


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found. Accuracy is over the images that were answered.

    Args:
        images: answered.
        correct1, correct5: whose class was the best answer, among the best five.
        num_classes: of the model; top-5 says nothing where there are no more than five.
        unreadable: images without an answer.
        seconds: reading, decoding and forward together.
        decode_seconds, forward_seconds: of those, in the two stages.
    """

    images: int
    correct1: int
    correct5: int
    num_classes: int
    unreadable: tuple[Unreadable, ...]
    seconds: float
    decode_seconds: float
    forward_seconds: float

    @property
    def top1(self) -> float | None:
        """Percent; None where no image was answered."""
        return 100 * self.correct1 / self.images if self.images else None

    @property
    def top5(self) -> float | None:
        """Percent; None where no image was answered or the model has no more than five classes."""
        return 100 * self.correct5 / self.images if self.images and self.num_classes > 5 else None

    @property
    def images_per_second(self) -> float:
        """Answered images a second."""
        return self.images / self.seconds if self.seconds > 0 else 0.0


def find_samples(root: Path, labels: Sequence[Label]) -> DataSet:
    """The labelled images under `root`, by one of two layouts.

    Class folders: each folder in `root` is a class, its name a label's id, its text (case and '_' do not
    matter) or its index; images lie in it at any depth. Labelled files: no folders, each name begins with a
    label's id and '_', '-' or '.', as in n01440764_tench.JPEG.

    Raises:
        DataError: no such folder, no images, or classes that fit no label; the message names some.
    """
    if not root.is_dir():
        raise DataError(f"DATA {root}: {'is a file, not a folder' if root.exists() else 'no such folder'}")
    folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    files = list(_files(root))
    images = sorted(path for path in files if path.suffix.lower() in IMAGE_SUFFIXES)
    if not images:
        raise DataError(f"DATA {root}: no images in it ({len(files)} other files)")
    if folders:
        return _class_folders(root, folders, images, files, labels)
    return _labelled_files(root, images, files, labels)


def evaluate(
    pipeline: Pipeline,
    samples: Sequence[Sample],
    *,
    max_image_bytes: int,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Classify every sample and count.

    Args:
        max_image_bytes: a larger file is not read.
        batch_size: images handed to the pipeline at once; answers do not depend on it.
        progress: called with images done and in all.

    Raises:
        RuntimeError: the model failed on an image that could be read.
    """
    size = batch_size or pipeline.default_batch_size
    correct1 = correct5 = answered = 0
    unreadable: list[Unreadable] = []
    decode_seconds = forward_seconds = 0.0
    started = time.perf_counter()
    for first in range(0, len(samples), size):
        part = samples[first : first + size]
        outcomes, result = _classify(pipeline, part, max_image_bytes)
        decode_seconds += result.decoded - result.started
        forward_seconds += result.forwarded - result.decoded
        for sample, outcome in zip(part, outcomes, strict=True):
            if isinstance(outcome, Predictions):
                answered += 1
                correct1 += outcome.index[0] == sample.target
                correct5 += sample.target in outcome.index
            elif isinstance(outcome, InputError):
                unreadable.append(Unreadable(sample.path, outcome.code, outcome.message))
            else:
                raise RuntimeError(f"the model failed on {sample.path}: {outcome.message}")
        if progress:
            progress(first + len(part), len(samples))
    seconds = time.perf_counter() - started
    return Evaluation(
        answered,
        correct1,
        correct5,
        pipeline.num_classes,
        tuple(unreadable),
        seconds,
        decode_seconds,
        forward_seconds,
    )


def read_image(path: Path, max_bytes: int) -> bytes | InputError:
    """An image file's bytes; one that is too large or cannot be read is an error like any other bad image."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > max_bytes:
                return InputError("too_large", f"image file has {size} bytes: limit {max_bytes} bytes")
            return file.read(max_bytes)
    except OSError as error:
        return InputError("undecodable", f"cannot be read: {error.strerror}")


def _classify(pipeline: Pipeline, part: Sequence[Sample], max_bytes: int) -> tuple[list[Outcome], BatchResult]:
    """One batch: outcomes in order, files that could not be read among them."""
    contents = [read_image(sample.path, max_bytes) for sample in part]
    images = [content for content in contents if isinstance(content, bytes)]
    top_k = min(5, pipeline.num_classes)
    result = pipeline.run(images, [None] * len(images), [top_k] * len(images))
    answers = iter(result.outcomes)
    return [next(answers) if isinstance(content, bytes) else content for content in contents], result


def _files(root: Path) -> Iterator[Path]:
    """Every file under `root` that is not hidden; links to folders are followed, each folder entered once."""
    entered: set[str] = set()
    for folder, folders, names in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        if real in entered:
            folders[:] = []
            continue
        entered.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                yield Path(folder, name)


def _class_folders(
    root: Path,
    folders: Sequence[Path],
    images: Sequence[Path],
    files: Sequence[Path],
    labels: Sequence[Label],
) -> DataSet:
    by_name, doubles = _class_names(labels)
    targets = {folder.name: by_name.get(_plain(folder.name), -1) for folder in folders}
    used = {path.relative_to(root).parts[0] for path in images if path.parent != root}
    double = next((name for name in sorted(used) if _plain(name) in doubles and targets[name] < 0), None)
    if double is not None:
        raise DataError(f"DATA {root}: {double!r} is the name of several labels: name the folder by a label's id")
    _check_known(root, "folders", [name for name in sorted(used) if targets[name] < 0], len(used), labels)
    samples = [Sample(path, targets[path.relative_to(root).parts[0]]) for path in images if path.parent != root]
    if not samples:
        raise DataError(f"DATA {root}: {len(folders)} folders, but no image in any of them")
    return DataSet(root, "class folders", tuple(samples), len(files) - len(samples))


def _labelled_files(root: Path, images: Sequence[Path], files: Sequence[Path], labels: Sequence[Label]) -> DataSet:
    ids = {label.id: index for index, label in enumerate(labels)}
    targets = [_target_of(path.name, ids) for path in images]
    unknown = [path.name for path, target in zip(images, targets, strict=True) if target is None]
    _check_known(root, "files", unknown, len(images), labels)
    samples = [Sample(path, target) for path, target in zip(images, targets, strict=True) if target is not None]
    return DataSet(root, "labelled files", tuple(samples), len(files) - len(images))


def _target_of(name: str, ids: dict[str, int]) -> int | None:
    """The class whose id the name begins with, the longest such id."""
    ends = [end for end, char in enumerate(name) if char in "_-."]
    return next((ids[name[:end]] for end in reversed(ends) if name[:end] in ids), None)


def _check_known(root: Path, what: str, unknown: Sequence[str], count: int, labels: Sequence[Label]) -> None:
    if unknown:
        some = ", ".join(unknown[:_SHOWN]) + (", ..." if len(unknown) > _SHOWN else "")
        raise DataError(
            f"DATA {root}: {len(unknown)} of {count} {what} fit none of the {len(labels)} labels: {some} "
            f"(the first label is id {labels[0].id!r}, {labels[0].label!r})"
        )


def _class_names(labels: Sequence[Label]) -> tuple[dict[str, int], set[str]]:
    """Names that mean one class: ids first, then texts, then indices; and texts that several classes have."""
    texts = [_plain(label.label) for label in labels]
    doubles = {text for text, count in Counter(texts).items() if count > 1}
    names = {str(index): index for index in range(len(labels))}
    names |= {text: index for index, text in enumerate(texts) if text not in doubles}
    names |= {_plain(label.id): index for index, label in enumerate(labels)}
    return names, doubles


def _plain(name: str) -> str:
    """A name as people write it in folders: case and '_' do not matter."""
    return " ".join(name.casefold().replace("_", " ").split())
