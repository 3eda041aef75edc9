"""ExportCache keeps what a start makes of a bundle's weights, counts and an exported graph, for the next start."""

import hashlib
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...kernels.tuning.cache import replace_file
from ..bundle.graph_record import COUNTS, is_counts
from ..measurements import measurements
from .session import runtime_version

logger = logging.getLogger("milkweed.backend")

FILE, FOLDER = "exports.json", "graphs"
MAX_ENTRIES, MAX_BYTES = 256, 2 * 10**9
"""So many bundles are remembered; so many bytes of graphs are kept, less than what ONNX divides into two files."""

MADE_BY = ("milkweed", "torch", "timm", "onnx", "onnxscript")


class ExportCache:
    """What was made of one bundle's weights by the same versions of what makes it, beside what the tuner keeps.

    What is missing or damaged is made again, and what cannot be written costs a line in the log.

    Args:
        folder: as `measurements` takes it; graphs lie in its `graphs`, each called by its sha256.
        version: of the bundle.
        writes: whether what is made is kept.
    """

    def __init__(self, folder: str, version: str, *, writes: bool) -> None:
        self._file, self.writes = measurements(FILE, folder, MAX_ENTRIES), writes
        self._folder = self._file.path and self._file.path.parent / FOLDER
        self._key = ";".join([version, *(f"{name} {runtime_version(name)}" for name in MADE_BY)])
        entry = self._file.get(self._key)
        self._entry: dict[str, Any] = entry if isinstance(entry, dict) else {}

    def counts(self, count: Callable[[], Mapping[str, int]]) -> Mapping[str, int]:
        """COUNTS of the model, as they were kept or else as `count` gives them."""
        counts: Mapping[str, int] = {name: self._entry.get(name, -1) for name in COUNTS}
        if not is_counts(counts):
            counts = count()
            self._put(counts)
        return counts

    def graph(self) -> tuple[bytes, int] | None:
        """The graph that was exported, an ONNX file, and the bytes of its weights; None where none is kept."""
        name, weight_bytes = self._entry.get("graph"), self._entry.get("weight_bytes")
        if self._folder is None or not isinstance(name, str) or type(weight_bytes) is not int:
            return None
        file = self._folder / f"{name}.onnx"
        try:
            data = file.read_bytes()
        except (OSError, ValueError):  # others were used since
            return None
        if hashlib.sha256(data).hexdigest() != name:
            logger.warning("%s: is damaged: the graph is exported again", file)
            return None
        with suppress(OSError):  # a folder that may only be read
            file.touch()
        return data, weight_bytes

    def put_graph(self, file: Path, weight_bytes: int) -> None:
        """Keep a graph, unless it is too large, and remove those that were used least recently beyond MAX_BYTES."""
        if self._folder is None or not self.writes or weight_bytes > MAX_BYTES:
            return
        try:
            data, total = file.read_bytes(), 0
            name = hashlib.sha256(data).hexdigest()
            self._folder.mkdir(0o700, parents=True, exist_ok=True)
            replace_file(self._folder / f"{name}.onnx", data)
            for kept in sorted(self._folder.iterdir(), key=lambda kept: -kept.stat().st_mtime_ns):
                total += kept.stat().st_size
                if total > MAX_BYTES:
                    kept.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("an exported graph cannot be kept, the next start exports it again: %s", error)
        else:
            self._put({"graph": name, "weight_bytes": weight_bytes})

    def _put(self, values: Mapping[str, Any]) -> None:
        self._entry.update(values)
        if self.writes:
            self._file.put(self._key, self._entry)
