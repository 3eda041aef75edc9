"""Finds the images for `milkweed classify`: files, folders, patterns, lists; and reads what each holds."""

import glob
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...loaders.headers.sniff import images_among
from ..errors import WRONG_USAGE, CommandError, one_line
from ..output import note

STDIN = "-"

_NPY_MAGIC = b"\x93NUMPY"

_PATTERN_CHARS = frozenset("*?[")


def named_images(arguments: Sequence[str], from_file: str | None) -> list[str]:
    """List the images' names, in order, each once; folders and patterns stand for the images in them, by name.

    Args:
        from_file: a file of further names, one a line, or with NUL between (`find -print0`); `-` is stdin.

    Raises:
        CommandError: no image is given or found, or stdin is given twice.
    """
    if not arguments and from_file is None:
        raise CommandError("missing argument 'IMAGE...', or --from-file; see milkweed classify --help", WRONG_USAGE)
    listed = [] if from_file is None else _listed(from_file)
    names = [name for argument in (*arguments, *listed) for name in _expanded(argument)]
    if names.count(STDIN) + (from_file == STDIN) > 1:
        raise CommandError("IMAGE -: stdin can be read once", WRONG_USAGE)
    if not names:
        raise CommandError(f"--from-file {from_file}: names no image")
    return list(dict.fromkeys(names))


def images_of(name: str) -> list[tuple[str, bytes | Path]]:
    """Read a file's images, with their names: one, or those of an array with a batch axis as FILE[0], FILE[1], ...

    A file that cannot be read stays a path; the one that classifies it says why.
    """
    try:
        content = sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
    except OSError:
        return [(name, Path(name))]
    if not content.startswith(_NPY_MAGIC):
        return [(name, content)]
    from ...loaders.decode.npy import count_images, split_images

    parts = split_images(content)
    if count_images(content) == 1:
        return [(name, parts[0])]
    return [(f"{name}[{place}]", part) for place, part in enumerate(parts)]


def _listed(file: str) -> list[str]:
    content = sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
    ends = b"\0" if b"\0" in content else b"\n"
    return [os.fsdecode(line) for line in content.split(ends) if line]


def _left_out(error: OSError) -> None:
    note(f"{one_line(str(error.filename))}: {error.strerror}: the images in it are left out")


def _expanded(name: str) -> Iterator[str]:
    if not name:
        raise CommandError("IMAGE '': must be a file, a folder, a pattern or -", WRONG_USAGE)
    path = Path(name)
    if path.is_dir():
        within = (Path(folder, file) for folder, _, files in os.walk(path, onerror=_left_out) for file in files)
        images = images_among(file for file in within if file.is_file())
        if not images:
            raise CommandError(f"IMAGE {path}: no images in this folder")
        yield from map(str, images)
    elif _PATTERN_CHARS & set(name) and not path.exists():
        matches = sorted(glob.glob(name, recursive=True))
        if not matches:
            raise CommandError(f"IMAGE {name}: no file has such a name")
        for match in matches:
            yield from _expanded(match)
    else:
        yield name
