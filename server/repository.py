"""Repository: a folder of bundles, one folder a name; in it the bundle, or its versions in folders that are numbers.

models/deit/config.json ...            one version, without a number
models/vitae/1/config.json ...         two; the highest number answers who asks for none
models/vitae/2/config.json ...
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

CONFIG = "config.json"
MAX_NAMES = 1000


class RepositoryError(ValueError):
    """A folder that cannot be served from; one line that names it."""


@dataclass(frozen=True)
class Found:
    """A bundle in the repository, and how its config stood: a bundle that is written again is another one.

    Args:
        number: of its version; "" where there is only one.
        stamp: of its config, which holds the hashes of all else.
    """

    name: str
    number: str
    path: Path
    stamp: tuple[int, int, int]

    @property
    def spoken(self) -> str:
        """As a person names it."""
        return f"{self.name}/{self.number}" if self.number else self.name


def scan(root: Path) -> dict[str, list[Found]]:
    """By name, the versions found, newest first. Folders that are no bundles, or not yet, are passed over.

    Raises:
        RepositoryError: the folder cannot be read, or holds too many names.
    """
    try:
        folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        raise RepositoryError(f"repository {root}: {error.strerror}") from None
    if len(folders) > MAX_NAMES:
        raise RepositoryError(f"repository {root}: {len(folders)} folders, the limit is {MAX_NAMES}")
    found = {folder.name: _versions(folder) for folder in folders}
    return {name: versions for name, versions in found.items() if versions}


def newest(
    found: Mapping[str, list[Found]], keep: int, pins: Callable[[str], Collection[str]] = lambda name: ()
) -> dict[str, list[Found]]:
    """Of each name, the versions to serve, oldest of them first, so that the newest comes in last.

    Args:
        keep: so many, the newest.
        pins: the numbers of a name that are served beside them.
    """
    wanted = {}
    for name, versions in found.items():
        pinned = pins(name)
        chosen = [each for place, each in enumerate(versions) if place < keep or each.number in pinned]
        wanted[name] = chosen[::-1]
    return wanted


def _versions(folder: Path) -> list[Found]:
    whole = _found(folder.name, "", folder)
    if whole is not None:
        return [whole]
    try:
        numbers = sorted(
            (p for p in folder.iterdir() if p.name.isascii() and p.name.isdigit()), key=lambda p: int(p.name)
        )
    except OSError:
        return []
    versions = [_found(folder.name, path.name, path) for path in reversed(numbers)]
    return [version for version in versions if version is not None]


def _found(name: str, number: str, path: Path) -> Found | None:
    try:
        stat = (path / CONFIG).stat()
    except OSError:
        return None
    return Found(name, number, path, (stat.st_mtime_ns, stat.st_size, stat.st_ino))
