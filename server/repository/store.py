"""Repository: a folder of bundles, one folder a name; in it the bundle, or its versions in folders that are numbers.

models/deit/config.json ...            one version, without a number
models/vitae/1/config.json ...         two; the highest number answers who asks for none
models/vitae/2/config.json ...
"""

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ...models.bundle.graph_record import GRAPH
from ...models.bundle.reading import CONFIG, LABELS, WEIGHTS

logger = logging.getLogger("milkweed.watch")

MAX_NAMES = 1000

_NAME = re.compile(r"[^\W_][\w.-]*")  # what a URL, a setting and a terminal can carry

MISSING = (FileNotFoundError, NotADirectoryError, PermissionError)
"""What says that no bundle is there for us (`lost+found` is nobody's); any other error may pass."""

Stamp = tuple[tuple[int, int, int] | None, ...]


class RepositoryError(ValueError):
    """A folder that cannot be served from; one line that names it."""


@dataclass(frozen=True)
class StoredBundle:
    """A bundle in the repository, and how its files stood: a bundle that is written again is another one.

    Args:
        number: of its version; "" where there is only one.
        stamp: of config, labels and weights, None for a file that is not there; empty where they cannot be looked at.
    """

    name: str
    number: str
    path: Path
    stamp: Stamp

    @property
    def spoken(self) -> str:
        """The version as messages name it: `name/number`, or the name alone where there is no number."""
        return f"{self.name}/{self.number}" if self.number else self.name


def scan(root: Path) -> dict[str, list[StoredBundle]]:
    """Find the versions of each name, newest first. Folders that are no bundles, or not yet, are passed over, and so
    are those whose names are none for a model, with a line in the log.

    Raises:
        RepositoryError: the folder cannot be read, or holds too many names.
    """
    try:
        folders = sorted(path for path in root.iterdir() if not path.name.startswith(".") and _is_folder(path))
    except OSError as error:
        raise RepositoryError(f"repository {root}: {error.strerror}") from None
    if len(folders) > MAX_NAMES:
        raise RepositoryError(f"repository {root}: {len(folders)} folders, the limit is {MAX_NAMES}")
    return by_name(bundle for folder in folders if _is_name(folder) for bundle in _versions(folder.name, folder))


def by_name(bundles: Iterable[StoredBundle]) -> dict[str, list[StoredBundle]]:
    """Bundles by name, newest first."""
    versions: dict[str, list[StoredBundle]] = {}
    for bundle in sorted(bundles, key=lambda bundle: (bundle.name, -int(bundle.number or 0))):
        versions.setdefault(bundle.name, []).append(bundle)
    return versions


def newest(
    stored: Mapping[str, list[StoredBundle]], keep: int, pins: Callable[[str], Collection[str]] = lambda name: ()
) -> dict[str, list[StoredBundle]]:
    """The versions of each name to serve, oldest of them first, so that the newest comes in last.

    Args:
        keep: so many, the newest.
        pins: the numbers of a name that are served beside them.
    """
    served = {}
    for name, versions in stored.items():
        pinned = pins(name)
        chosen = [bundle for place, bundle in enumerate(versions) if place < keep or bundle.number in pinned]
        served[name] = chosen[::-1]
    return served


@lru_cache(MAX_NAMES)  # so that no look repeats the line
def _is_name(folder: Path) -> bool:
    if _NAME.fullmatch(folder.name):
        return True
    logger.error(
        "repository %s: folder %a is not served: a model's name must be letters, digits, '.', '_' or '-', "
        "and begin with a letter or digit",
        *(folder.parent, folder.name),
    )
    return False


def _versions(name: str, folder: Path) -> list[StoredBundle]:
    whole = _found(name, "", folder)
    if whole is not None:
        return [whole]
    try:
        numbers = [path for path in folder.iterdir() if path.name.isascii() and path.name.isdigit()]
    except MISSING:
        return []
    except OSError:
        return [StoredBundle(name, "", folder, ())]
    versions = (_found(name, path.name, path) for path in numbers)
    return [version for version in versions if version is not None]


def _found(name: str, number: str, path: Path) -> StoredBundle | None:
    """A bundle; also one that cannot be looked at: it is not gone, and who opens it says what is wrong."""
    try:
        stamp = tuple(_stamp(path / file) for file in (CONFIG, LABELS, WEIGHTS, GRAPH))
    except OSError:
        return StoredBundle(name, number, path, ())
    return None if stamp[0] is None else StoredBundle(name, number, path, stamp)


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        stat = file.stat()
    except MISSING:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return True  # whatever it is, it is there
