"""Finds the bundles of models that are named on the hub; each is imported once, into the user's cache."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from shutil import rmtree

import typer

from ..errors import WRONG_USAGE, CommandError
from ..output import note

_NAMED = re.compile(r"(?:(?P<name>[^=/:]+)=)?(?P<source>(?:timm:|hf://)(?P<model>[\w./-]+)(?:@(?P<revision>.+))?)")
_COMMIT = re.compile(r"[0-9a-f]{12}")


def imported(arguments: Sequence[str], compress: str | None, images: Path | None) -> list[str]:
    """The arguments of `milkweed serve`, with NAME=FOLDER in the place of names on the hub.

    Args:
        compress, images: the target of a search, such as speedup=3, and its photographs.

    Raises:
        CommandError: two versions of a model are cached, or options that do not go together.
        Exit: a command that a name stands for failed; it has said why.
    """
    matches = [_NAMED.fullmatch(argument) for argument in arguments]
    if (compress is None) != (images is None) or (compress is not None and not any(matches)):
        raise CommandError("--compress TARGET=N, --images DIR and timm:NAME or hf://... go together", WRONG_USAGE)
    if compress is not None and not re.fullmatch(r"[a-z]+([-_][a-z]+)*=[\w.]+", compress):
        raise CommandError(f"--compress {compress!r}: must be a target of milkweed compress as speedup=3", WRONG_USAGE)
    return [
        argument if match is None else _served(match, compress, images)
        for argument, match in zip(arguments, matches, strict=True)
    ]


def _served(match: re.Match[str], compress: str | None, images: Path | None) -> str:
    """One argument; the commands that it stands for are printed, and run where their results are not cached."""
    bundle = _cached(match) or _import(match)
    commands = [["import", match["source"], str(bundle)]]
    if compress is not None:
        target, _, value = compress.partition("=")
        smaller = bundle.with_name(f"{bundle.name}+{compress}")
        option = "--" + target.replace("_", "-")
        commands.append(["compress", str(bundle), str(smaller), "--images", str(images), option, value])
        if not (smaller / "config.json").is_file():
            run_command(commands[-1])
        bundle = smaller
    name = match["name"] or match["model"].rpartition("/")[2][:64]
    note(f"{match['source']} stands for these commands:")
    for command in (*commands, ["serve", f"{name}={bundle}"]):
        typer.echo(f"  {shlex.join(['milkweed', *command])}", err=True)
    return f"{name}={bundle}"


def _cached(match: re.Match[str]) -> Path | None:
    """The bundle of a name that was imported before; None where none was."""
    folders = [path for path in bundles_folder().glob(f"{escape(_stem(match))}@*") if _COMMIT.fullmatch(_commit(path))]
    if revision := match["revision"]:
        folders = [path for path in folders if revision.startswith(_commit(path)) or _source(path) == match["source"]]
    if len(folders) > 1:
        versions = ", ".join(sorted(_commit(path) for path in folders))
        raise CommandError(
            f"{match['source']}: {len(folders)} versions of it are in {bundles_folder()} ({versions}): remove all but "
            "one, or name one as hf://ORG/REPO@COMMIT"
        )
    return folders[0] if folders else None


def _import(match: re.Match[str]) -> Path:
    """Import a model that is not cached."""
    with partial_bundle(_stem(match)) as partial:
        document = json.loads(run_command(["import", match["source"], str(partial), "--force", "--json"]))
        for text in document["notes"]:
            note(text)
        return keep(partial, bundles_folder() / f"{_stem(match)}@{document['source']['commit'][:12]}")


@contextmanager
def partial_bundle(stem: str) -> Iterator[Path]:
    """Yield a place in the cache that no other process uses; what is there at the end is removed."""
    partial = bundles_folder() / f".{stem}.{os.getpid()}"
    try:
        yield partial
    finally:
        rmtree(partial, ignore_errors=True)


def keep(partial: Path, bundle: Path) -> Path:
    """Give a bundle its name in the cache, unless it is there already: by its commit, or by another process."""
    try:
        partial.rename(bundle)
    except OSError:
        if not (bundle / "config.json").is_file():
            raise
    return bundle


def run_command(command: Sequence[str]) -> bytes:
    """What a command prints, run in a process of its own: a server needs nothing that it loads."""
    ran = subprocess.run([sys.executable, "-P", "-m", "milkweed.cli", *command], stdout=subprocess.PIPE)
    if ran.returncode:
        raise typer.Exit(ran.returncode)
    return ran.stdout


def bundles_folder() -> Path:
    """Where imported models are kept. Raises CommandError where there is no such place."""
    from ...kernels.tuning.cache import user_folder

    folder = user_folder(part="bundles")
    if folder is None:
        raise CommandError("no folder for imported models: set XDG_CACHE_HOME or HOME")
    return folder


def _stem(match: re.Match[str]) -> str:
    return str(match["model"]).replace("/", "--")


def _commit(bundle: Path) -> str:
    return bundle.name.rpartition("@")[2]


def _source(bundle: Path) -> str:
    """What a cached bundle was imported as."""
    from ...models import read_config

    return str(read_config(bundle).provenance["source"]["file"])
