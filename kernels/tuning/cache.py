"""Keeps what was measured from one start to the next, in JSON files that processes share: one for each device.

A file that is missing or broken costs new measurements and one warning, never a start. Presets are files of the same
form that come with the package and are only read.
"""

import json
import logging
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("milkweed.tuner")

PRESETS = Path(__file__).parents[1] / "presets"
FORMAT = "milkweed-tuning-1"
LOCK_SECONDS = 10


class TuningCache:
    """Plans by key. Entries that are missing or broken are misses.

    Args:
        path: the file; with None, everything stays in memory.
        presets: files that are read if `path` does not have a key.
        limit: the file keeps so many entries, those that were put last.
    """

    def __init__(self, path: Path | None = None, presets: Sequence[Path] = (), limit: int | None = None) -> None:
        self.path, self._limit = path, limit
        self._presets = presets
        self._own: dict[str, Any] | None = None
        self._preset: dict[str, Any] | None = None
        self._warned: set[str] = set()

    def get(self, key: str) -> Any:
        """Return the value, or None."""
        if self._own is None:
            self._own = self._read(self.path) if self.path else {}
        if key in self._own:
            return self._own[key]
        if self._preset is None:
            self._preset = {}
            for path in self._presets:
                self._preset |= self._read(path)
        return self._preset.get(key)

    def put(self, key: str, value: Any) -> None:
        """Keep a value, in the file too; what other processes have written there stays."""
        if self._own is None:
            self._own = {}
        self._own[key] = value
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{self.path}.lock", timeout=LOCK_SECONDS):
                others = [item for item in self._read(self.path).items() if item[0] != key]
                entries = dict([*others, (key, value)][-self._limit if self._limit else 0 :])
                replace_file(self.path, json.dumps({"format": FORMAT, "entries": entries}, indent=1).encode())
        except (OSError, NotImplementedError, Timeout) as error:  # NFS may have no locks
            self._warn(self.path, f"cannot be written ({error}): what was measured is lost with this process")
            return
        self._own = {**entries, **self._own}

    def _read(self, path: Path) -> dict[str, Any]:
        """Return a file's entries; none if there is no file or it is of another form."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except OSError as error:
            self._warn(path, f"cannot be read ({error.strerror})")
            return {}
        except (ValueError, RecursionError):
            self._warn(path, "is not JSON: ignored")
            return {}
        match content:
            case {"format": "milkweed-tuning-1", "entries": dict(entries)}:
                return entries
        self._warn(path, f"is not of the form {FORMAT}: ignored")
        return {}

    def _warn(self, path: Path, what: str) -> None:
        """Log each complaint about each file once."""
        line = f"tuning cache {path} {what}"
        if line not in self._warned:
            self._warned.add(line)
            logger.warning(line)


def device_cache(device: "torch.device", folder: Path | None = None) -> TuningCache:
    """Return the cache of a device: its file in `folder` or in the user's cache, and the package's preset for it."""
    name = device_file_name(device)
    folder = folder or user_folder()
    return TuningCache(None if folder is None else folder / name, (PRESETS / name,))


def user_folder(environment: Mapping[str, str] = os.environ, part: str = "tune") -> Path | None:
    """Return a part of `milkweed` in the user's cache; None if there is no home folder."""
    base = environment.get("XDG_CACHE_HOME", "")
    if not Path(base).is_absolute():  # the XDG standard says to ignore it then
        home = environment.get("HOME")
        if not home:
            return None
        base = f"{home}/.cache"
    return Path(base) / "milkweed" / part


def device_file_name(device: "torch.device") -> str:
    """Return the name of the file for one kind of device: `nvidia-h200-sm90.json`, `cpu.json`."""
    if device.type != "cuda":
        return f"{device.type}.json"
    import torch

    properties = torch.cuda.get_device_properties(device)
    slug = re.sub(r"[^a-z0-9]+", "-", properties.name.lower()).strip("-")
    return f"{slug}-sm{properties.major}{properties.minor}.json"


def replace_file(path: Path, data: bytes) -> None:
    """Write a file atomically."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
