"""Finds the images in a folder, and the class of each."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..loaders.dataset.counter_rng import epoch_order
from ..loaders.dataset.folder import read_file
from ..loaders.dataset.training import Sample
from ..loaders.errors import InputError
from ..loaders.headers.sniff import images_among
from ..models import BundleConfig
from ..models.bundle.labels import Label

_SHOWN = 5


class DataError(ValueError):
    """The images of a folder cannot be used; the message is one line."""


@dataclass(frozen=True)
class DataSet:
    """The labelled images under a folder.

    Args:
        layout: `class folders` or `labelled files`.
        samples: sorted by path.
        passed_over: how many files were left out, most of them no images by name.
    """

    root: Path
    layout: str
    samples: tuple[Sample, ...]
    passed_over: int

    @property
    def classes(self) -> int:
        """Classes that have an image."""
        return len({sample.target for sample in self.samples})


def labelled_images(root: Path, labels: Sequence[Label]) -> DataSet:
    """Find the labelled images under `root`, in one of two layouts.

    Class folders: each folder in `root` is a class, its name a label's id, its text (case and '_' do not
    matter) or its index; images lie in it at any depth. Labelled files: no folders, each name begins with a
    label's id and '_', '-' or '.', as in n01440764_tench.JPEG.

    Raises:
        DataError: no such folder, no images, or classes that fit no label; the message names some.
    """
    images, files = _images(root)
    folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    if folders:
        return _class_folders(root, folders, images, files, labels)
    return _labelled_files(root, images, files, labels)


def folder_samples(folder: Path, config: BundleConfig, *, labelled: bool = False) -> list[Sample]:
    """Find the images under a folder, with their classes where the layout says the model's classes, if it has any.

    Raises:
        DataError: there are no images, or `labelled` is set and classes fit no label.
    """
    try:
        if not config.embeds or labelled:
            return list(labelled_images(folder, config.labels).samples)
        return [Sample(path, None) for path in image_files(folder)]
    except DataError:
        if labelled:
            raise
        return [Sample(path, None) for path in image_files(folder)]


def image_files(root: Path) -> list[Path]:
    """Find every image file under `root`, sorted, whatever its class.

    Raises:
        DataError: no such folder, or no images.
    """
    return _images(root)[0]


def class_labels(root: Path) -> tuple[Label, ...]:
    """Make labels of a folder that holds one folder a class: the sorted names of those that have images.

    Raises:
        DataError: no such folder, or fewer than two folders with images.
    """
    images, _ = _images(root)
    names = sorted({path.relative_to(root).parts[0] for path in images if path.parent != root})
    if len(names) < 2:
        raise DataError(
            f"DATA {root}: {len(names)} folders with images, training needs one for each class, two or more"
        )
    return tuple(Label(name, name.replace("_", " ")) for name in names)


def spaced(samples: Sequence[Sample], most: int) -> Sequence[Sample]:
    """Choose at most `most` of the samples, evenly spaced, so that few images are still of many classes."""
    count = len(samples)
    return samples if count <= most else [samples[place * count // most] for place in range(most)]


def hold_out(samples: Sequence[Sample], count: int) -> tuple[list[Sample], list[Sample]]:
    """Split samples into those to train on and `count` to measure on, always the same ones."""
    held_out = set(epoch_order(0, 0, len(samples))[:count].tolist())
    training = [sample for place, sample in enumerate(samples) if place not in held_out]
    return training, [samples[place] for place in sorted(held_out)]


def read_image(path: Path, max_bytes: int) -> bytes | InputError:
    """Read an image file; one that is too large or cannot be read gives an error like any other bad image."""
    try:
        return read_file(path, max_bytes)
    except InputError as error:
        return error


def _images(root: Path) -> tuple[list[Path], list[Path]]:
    """Find the image files under `root`, sorted, and all files."""
    if not root.is_dir():
        raise DataError(f"DATA {root}: {'is a file, not a folder' if root.exists() else 'no such folder'}")
    files = list(_files(root))
    images = images_among(file for file in files if file.is_file())
    if not images:
        raise DataError(f"DATA {root}: no images in it ({len(files)} other files)")
    return images, files


def _files(root: Path) -> Iterator[Path]:
    """Walk over the files under `root` that are not hidden; links to folders are followed, each folder entered once."""
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
    """Return the class whose id the name begins with; the longest such id counts."""
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
    """Map names to classes: ids go before texts, texts before indices; and collect texts that several classes share."""
    texts = [_plain(label.label) for label in labels]
    doubles = {text for text, count in Counter(texts).items() if count > 1}
    names = {str(index): index for index in range(len(labels))}
    names |= {text: index for index, text in enumerate(texts) if text not in doubles}
    names |= {_plain(label.id): index for index, label in enumerate(labels)}
    return names, doubles


def _plain(name: str) -> str:
    """Normalise a folder's name: case and '_' do not matter."""
    return " ".join(name.casefold().replace("_", " ").split())
