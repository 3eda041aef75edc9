"""Finds bundles: the demo models in the package, those named on the command line, free places for new ones."""

import re
from importlib.resources import files
from pathlib import Path

from .errors import FAILED, WRONG_USAGE, CommandError

DEMO, MONARCH = "demo", "demo-monarch"
"""The models that come with the package: the one that answers, and one with Monarch layers to compare it with."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def demo_bundle(name: str = DEMO) -> Path:
    """Return a bundle that comes with the package.

    Raises:
        CommandError: this installation has none.
    """
    path = installed_demo(name)
    if path is None:
        raise CommandError(
            f"no bundle was given and the demo model is not installed: {_packaged(name)} has no config.json"
        )
    return path


def installed_demo(name: str = DEMO) -> Path | None:
    """Return a bundle that comes with the package; None where this installation has none."""
    path = _packaged(name)
    return path if (path / "config.json").is_file() else None


def bundle_path(text: str) -> Path:
    """Return the folder that an argument names; `demo` and `demo-monarch` come with the package where nothing here has
    that name."""
    return demo_bundle(text) if text in (DEMO, MONARCH) and not Path(text).exists() else Path(text)


def named_bundles(arguments: list[str]) -> dict[str, Path]:
    """Read the models to serve from `[NAME=]BUNDLE` arguments, in order; the demo models where there are none.

    Raises:
        CommandError: a name that cannot be one, or two models of one name.
    """
    if not arguments:
        beside = installed_demo(MONARCH)
        return {DEMO: demo_bundle()} | ({} if beside is None else {MONARCH: beside})
    bundles: dict[str, Path] = {}
    for argument in arguments:
        name, path = _split(argument)
        if not _NAME.fullmatch(name):
            raise CommandError(
                f"argument {argument!r}: the name {name!r} must be 1 to 64 letters, digits, '.', '_' or '-'; "
                "give one as NAME=BUNDLE",
                WRONG_USAGE,
            )
        if name in bundles:
            raise CommandError(
                f"argument {argument!r}: {bundles[name]} is called {name!r} too; give another as NAME=BUNDLE",
                WRONG_USAGE,
            )
        bundles[name] = path
    return bundles


def check_free(out: Path, force: bool) -> None:
    """Refuse a folder that holds a bundle before any work is done; other folders are refused when OUT is written.

    Raises:
        CommandError: a bundle is there and `force` is off.
    """
    if not force and (out / "config.json").exists():
        raise CommandError(f"bundle {out}: exists already; --force replaces it", FAILED)


def _split(argument: str) -> tuple[str, Path]:
    """Split an argument into its name and its path; a '=' behind a '/' belongs to the path."""
    name, equals, path = argument.partition("=")
    if equals and "/" not in name:
        return name, bundle_path(path)
    return Path(argument).resolve().name, bundle_path(argument)


def _packaged(name: str) -> Path:
    return Path(str(files("milkweed.models") / name.replace("-", "_")))
