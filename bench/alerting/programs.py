"""The programs `prometheus` and `alertmanager`: where they are, and running one until it answers."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..serving.ports import wait_until_ready

FOLDER = "MILKWEED_PROMETHEUS_BIN"
"""Variable that names the folder they lie in; without it they are looked for on PATH."""

START_SECONDS, END_SECONDS = 60.0, 20.0


@dataclass(frozen=True)
class Programs:
    """Where each of them lies."""

    prometheus: Path
    alertmanager: Path


def find_programs(folder: Path | None = None) -> Programs:
    """Both programs, of a folder or of PATH. Debian calls the second one prometheus-alertmanager.

    Raises:
        FileNotFoundError: names the one that is not there and where it was looked for.
    """
    named = os.environ.get(FOLDER)
    where = folder or (Path(named) if named else None)
    return Programs(_found(("prometheus",), where), _found(("prometheus-alertmanager", "alertmanager"), where))


@contextmanager
def running(command: Sequence[str | Path], ready_url: str, log: Path) -> Iterator[None]:
    """A child process from when it answers until the end of the block.

    Args:
        log: file for all that it says.

    Raises:
        RuntimeError: it ended, or does not answer; with the last that it said.
    """
    with log.open("w", encoding="utf-8") as said:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT)
    try:
        try:
            wait_until_ready(ready_url, START_SECONDS, lambda: process.poll() is None)
        except RuntimeError as error:
            raise RuntimeError(f"{error}: {log.read_text(encoding='utf-8')[-600:]}") from None
        yield
    finally:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _found(names: Sequence[str], folder: Path | None) -> Path:
    path = None if folder is None else str(folder)
    for name in names:
        found = shutil.which(name, path=path)
        if found is not None:
            return Path(found)
    where = f"in {folder}" if folder else f"on PATH, and {FOLDER} is not set"
    raise FileNotFoundError(f"no {names[0]} {where}: Debian has it in the package of that name")
