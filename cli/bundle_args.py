"""Where bundles are: the demo model in the package, those named on the command line, places for new ones."""

import re
from importlib.resources import files
from pathlib import Path

from .errors import FAILED, WRONG_USAGE, CommandError

DEMO = "demo"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def demo_bundle() -> Path:
    """The bundle that comes with the package.

    Raises:
        Failure: this installation has none.
    """
    path = installed_demo()
    if path is None:
        raise CommandError(
            f"no bundle was given and the demo model is not installed: {_demo_path()} has no config.json"
        )
    return path


def installed_demo() -> Path | None:
    """As `demo_bundle`; None where there is none."""
    path = _demo_path()
    return path if (path / "config.json").is_file() else None


def named_bundles(arguments: list[str]) -> dict[str, Path]:
    """The models to serve from `[NAME=]BUNDLE` arguments, in order; the demo model where there are none.

    Raises:
        Failure: a name that cannot be one, or two models of one name.
    """
    if not arguments:
        return {DEMO: demo_bundle()}
    found: dict[str, Path] = {}
    for argument in arguments:
        name, path = _split(argument)
        if not _NAME.fullmatch(name):
            raise CommandError(
                f"argument {argument!r}: the name {name!r} must be 1 to 64 letters, digits, '.', '_' or '-'; "
                "give one as NAME=BUNDLE",
                WRONG_USAGE,
            )
        if name in found:
            raise CommandError(
                f"argument {argument!r}: {found[name]} is called {name!r} too; give another as NAME=BUNDLE",
                WRONG_USAGE,
            )
        found[name] = path
    return found


def check_free(out: Path, force: bool) -> None:
    """Refuse a place that is taken before any work is done; what is no bundle is refused when it is written.

    Raises:
        Failure: a bundle is there and `force` is off.
    """
    if not force and (out / "config.json").exists():
        raise CommandError(f"bundle {out}: exists already; --force replaces it", FAILED)


def _split(argument: str) -> tuple[str, Path]:
    """NAME and path; a path that holds a '=' behind a '/' is a path."""
    name, equals, path = argument.partition("=")
    if equals and "/" not in name:
        return name, Path(path)
    return Path(argument).resolve().name, Path(argument)


def _demo_path() -> Path:
    return Path(str(files("milkweed.models") / DEMO))
