"""What stands for the kernel's account of a container's memory, so that a limit can be set on a machine without one."""

from pathlib import Path

import psutil

USUAL_SHARE = 0.5


class Cgroup:
    """No limit at first.

    Args:
        folder: of its files; made here.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._write("memory.max", "max")

    def limit(self, pid: int, share: float = USUAL_SHARE) -> None:
        """A limit of which a process uses this share; what it uses is what it has resident now, in bytes."""
        used = int(psutil.Process(pid).memory_info().rss)
        self._write("memory.stat", "inactive_file 0")
        self._write("memory.current", str(used))
        self._write("memory.max", str(int(used / share)))

    def _write(self, name: str, text: str) -> None:
        coming = self.folder / f".{name}"
        coming.write_text(text + "\n", encoding="utf-8")
        coming.rename(self.folder / name)  # whole at once: it is read at any moment
