"""Says by which command what is missing is added to this installation: in a checkout, from a wheel, from an index."""

import json
import os
import shlex
import shutil
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

LIBRARIES = {"cpu-kernels": "milkweed.kernels.cpu.build", "kernels": "milkweed.kernels.native.build"}
"""Libraries of kernels by the make target that builds them: the module that does it without make."""

ROOT = Path(__file__).resolve().parents[2]
"""The repository in a checkout, else the package."""


def install_command(name: str) -> str:
    """Return a command that adds something to the environment of this process, from any folder.

    Args:
        name: extras of milkweed with commas between them, or one of LIBRARIES.
    """
    checkout = (ROOT / "pyproject.toml").is_file()
    if checkout and Path(sys.prefix) == ROOT / ".venv":
        make = "make" if os.environ.get("PWD") == str(ROOT) else shlex.join(["make", "-C", str(ROOT)])
        return f"{make} {name if name in LIBRARIES else f'install-{name}'}"
    python = shlex.quote(sys.executable)
    if name in LIBRARIES:
        return f"{python} -m {LIBRARIES[name]}"
    source = f"{ROOT}[{name}]" if checkout else _requirement(name)
    return f"{_pip(python)} install {'-e ' if checkout else ''}'{source}'"


def _pip(python: str) -> str:
    """The pip of this environment, by its name alone where a shell takes it for that."""
    on_path = shutil.which("pip")
    return "pip" if on_path and Path(on_path).parent == Path(sys.executable).parent else f"{python} -m pip"


def _requirement(extras: str) -> str:
    """The installed milkweed with extras, as pip takes it: by the file or address that it came from, if by any."""
    try:
        url = json.loads(distribution("milkweed").read_text("direct_url.json") or "{}").get("url", "")
    except (PackageNotFoundError, ValueError):
        url = ""
    if url.startswith("file:"):
        file = Path(unquote(urlsplit(url).path))
        return f"{file if file.exists() else file.name}[{extras}]"
    return f"milkweed[{extras}] @ {url}" if url else f"milkweed[{extras}]"
