"""Environments of the peers: one venv each, made and filled by pip."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from .catalogue import PEERS, VENVS, Peer

TORCH = "torch==2.13.0+cpu"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
STAMP = "installed.txt"


def venv_of(peer: Peer, folder: Path) -> Path:
    """The venv of a peer."""
    return folder / VENVS.get(peer.name, peer.name)


def missing(peer: Peer, folder: Path) -> str | None:
    """Why a peer cannot be started; None where it can."""
    for tool in peer.tools:
        if shutil.which(tool) is None:
            return f"needs {tool}"
    if not (venv_of(peer, folder) / STAMP).exists():
        return f"not installed: python -m milkweed.bench.peers setup {VENVS.get(peer.name, peer.name)}"
    return None


def install(name: str, folder: Path, torch: str = TORCH) -> None:
    """Make a peer's venv; does nothing where it is complete.

    Raises:
        RuntimeError: something it needs is not there, or pip failed; with pip's last lines.
    """
    peer = PEERS[name]
    venv = venv_of(peer, folder)
    if (venv / STAMP).exists():
        return
    for tool in peer.tools:
        if shutil.which(tool) is None:
            raise RuntimeError(f"{name} needs {tool}")
    python = peer.python or Path(sys.executable)
    if not python.exists():
        raise RuntimeError(f"{name} needs {python}")
    venv.parent.mkdir(parents=True, exist_ok=True)
    _call([str(python), "-m", "venv", str(venv)], name)
    pip = [str(venv / "bin" / "python"), "-m", "pip"]
    install = [*pip, "install", "--quiet", "--disable-pip-version-check"]
    _call([*install, "--extra-index-url", TORCH_INDEX, torch, "numpy"], name)
    _call([*install, *peer.requirements], name)
    said = subprocess.run([*pip, "freeze"], capture_output=True, text=True, check=True, env=_environment())
    (venv / STAMP).write_text(said.stdout)


def version_of(peer: Peer, folder: Path) -> str:
    """The installed version of the peer's own package."""
    wanted = peer.requirements[0].partition("[")[0].lower()
    for line in (venv_of(peer, folder) / STAMP).read_text().splitlines():
        name, _, found = line.partition("==")
        if name.lower().replace("_", "-") == wanted:
            return found
    return "unknown"


def _call(command: list[str], name: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=_environment())
    if done.returncode:
        raise RuntimeError(f"{name}: {' '.join(command[1:4])} failed: {(done.stderr or done.stdout)[-500:]}")


def _environment() -> dict[str, str]:
    """Ours would lead the foreign interpreter to our packages."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
