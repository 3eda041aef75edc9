"""Reads files again when they change while the server runs: looks at them once a second, on a thread."""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import Gauge

logger = logging.getLogger("milkweed.security")

# Nothing tells a process on every file system and every kind of mount that a file has changed: one has to look.
LOOK_SECONDS = 1.0

Look = tuple[tuple[int, int, int] | None, ...]


@dataclass(slots=True)
class _Watched:
    what: str
    files: tuple[Path, ...]
    reload: Callable[[], None]
    seen: Look


class FileWatcher:
    """Has files that have changed read again; a new file that is broken changes nothing. `failing`: gauge with a label
    for the kind of file; 1 while the newest one cannot be used."""

    def __init__(self, failing: Gauge) -> None:
        self._failing = failing
        self._watched: list[_Watched] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, what: str, files: Sequence[Path], reload: Callable[[], None]) -> None:
        """Call `reload` now, and again whenever one of `files` has changed.

        Args:
            what: one or two words for log and metric.
            reload: keeps what it had where it raises. Later calls are on another thread.
        """
        seen = _look(files)  # before reading: a change in between is seen as one
        reload()
        self._failing.labels(what).set(0)
        self._watched.append(_Watched(what, tuple(files), reload, seen))

    def start(self) -> None:
        """Look from now on; no thread where there is nothing to look at."""
        if self._watched and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="milkweed-files", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def check(self) -> None:
        """Look once. An error in a new file is logged once for each change."""
        for watched in self._watched:
            seen = _look(watched.files)
            if seen == watched.seen:
                continue
            watched.seen = seen
            try:
                watched.reload()
            except Exception as error:  # the other files are looked at whatever it is
                self._failing.labels(watched.what).set(1)
                foreign = None if isinstance(error, ValueError | OSError) else error
                text = "%s: the new file is not used, the old one stays in force: %s"
                logger.error(text, watched.what, error, exc_info=foreign)
            else:
                self._failing.labels(watched.what).set(0)
                logger.info("%s: read again", watched.what)

    def _run(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            try:
                self.check()
            except Exception:  # the thread goes on whatever it is
                logger.exception("looking at files failed")


def _look(files: Sequence[Path]) -> Look:
    """What differs between two versions of a file; links are followed, since a mounted secret is one."""
    return tuple(_look_at(file) for file in files)


def _look_at(file: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size
