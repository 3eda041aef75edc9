"""Finds the images for `milkweed classify`: files, folders, patterns, URLs, lists; and reads what each holds."""

import glob
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path

from ...loaders.headers.sniff import images_among
from ..errors import WRONG_USAGE, CommandError, one_line
from ..output import note
from .bulk_inputs import Content, expand_url, fetch, holds_images, images_within, protocol

STDIN = "-"

_NPY_MAGIC = b"\x93NUMPY"

_PATTERN_CHARS = frozenset("*?[")


def named_images(arguments: Sequence[str], from_file: str | None) -> list[str]:
    """List the images' names, in order, each once; folders, patterns and URLs stand for the images in them, by name.

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


def images_of(names: Sequence[str], column: str) -> Iterator[tuple[str, Content]]:
    """Read images one after another: the name of each, and what it holds.

    Arrays with a batch axis are several images, FILE[0], FILE[1], ...; so are tars and tables. A file that cannot be
    read stays a path; the one that classifies it says why.

    Args:
        column: of tables, see `images_within`.
    """
    for store, group in groupby(names, lambda name: "" if holds_images(name) else protocol(name)):
        if store:
            files = fetch(list(group))
        else:
            within = (images_within(name, column) if holds_images(name) else [_file(name)] for name in group)
            files = chain.from_iterable(within)
        for name, content in files:
            yield from _parts(name, content)


def _file(name: str) -> tuple[str, Content]:
    try:
        return name, sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
    except OSError:
        return name, Path(name)


def _parts(name: str, content: Content) -> list[tuple[str, Content]]:
    if not isinstance(content, bytes) or not content.startswith(_NPY_MAGIC):
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
    if protocol(name):
        yield from expand_url(name)
        return
    path = Path(name)
    if path.is_dir():
        within = (Path(folder, file) for folder, _, files in os.walk(path, onerror=_left_out) for file in files)
        files = [file for file in within if file.is_file()]
        several = [file for file in files if holds_images(file.name)]
        images = images_among(file for file in files if not holds_images(file.name))
        if not images and not several:
            raise CommandError(f"IMAGE {path}: no images in this folder")
        yield from map(str, sorted(images + several))
    elif _PATTERN_CHARS & set(name) and not path.exists():
        matches = sorted(glob.glob(name, recursive=True))
        if not matches:
            raise CommandError(f"IMAGE {name}: no file has such a name")
        for match in matches:
            yield from _expanded(match)
    else:
        yield name
