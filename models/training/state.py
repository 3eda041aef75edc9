"""Keeps a run's state on disk as safetensors and JSON, whole at every instant.

`state.json` names the tensors' file and its sha256. A save writes a new file of tensors beside the old, then lets
a new state.json take the old one's place, then removes the old tensors. A process that is killed in between, or finds
the disk full, leaves the state before.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from torch import Tensor

from ..bundle.durable import sha256_of, sync
from ..bundle.safetensors_file import read_tensors, write_tensors
from ..bundle.strict_json import MAX_JSON_BYTES, parse_json, readable_json
from ..errors import quoted

FORMAT = 1
DOCUMENT = "state.json"
SUFFIX = ".safetensors"
LOCK = "lock"


class TrainingError(ValueError):
    """A run that cannot begin, go on, or be taken up again; one line says what stopped it and what is kept."""


@dataclass(frozen=True)
class Saved:
    """A state as it was read.

    Args:
        fingerprint: the fingerprint of the run that it belongs to.
        progress: how far the run was, plain data.
        tensors: weights, averages and moments, on the CPU.
    """

    fingerprint: Mapping[str, Any]
    progress: Mapping[str, Any]
    tensors: dict[str, Tensor]


class StateFolder:
    """Saves and loads the state of one run; a folder that is not there holds no state."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out while the block runs, unless the file system has no locks.

        Raises:
            TrainingError: another process trains here, or the folder cannot be made.
        """
        lock = FileLock(self.path / LOCK, timeout=0)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout:
            raise TrainingError(f"state {self.path}: another process trains there, wait until it has ended") from None
        except NotImplementedError:  # NFS may have no locks
            pass
        except OSError as error:
            raise TrainingError(f"state {self.path}: cannot be saved: {error.strerror}") from error
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                (self.path / LOCK).unlink()
                self.path.rmdir()  # where nothing was saved
            lock.release()

    def save(self, fingerprint: Mapping[str, Any], progress: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Replace the state, whole or not at all.

        Raises:
            TrainingError: it cannot be written; the state before stays.
        """
        name = f"{secrets.token_hex(6)}{SUFFIX}"
        document = {"format": FORMAT, "fingerprint": dict(fingerprint), "progress": dict(progress), "tensors": name}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_tensors(self.path / name, tensors)
            sync(self.path / name)
            self._commit(readable_json({**document, "sha256": sha256_of(self.path / name)}))
        except (OSError, ValueError) as error:
            self._remove_all_but(self._current())
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise TrainingError(f"state {self.path}: cannot be saved: {reason}; the last one saved is kept") from error
        self._remove_all_but(name)

    def load(self) -> Saved | None:
        """The state, or None where there is none.

        Raises:
            TrainingError: it cannot be read, or is not what was saved.
        """
        try:
            with open(self.path / DOCUMENT, "rb") as file:
                document = parse_json(file.read(MAX_JSON_BYTES + 1))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise TrainingError(f"state {self.path}: {DOCUMENT}: {error}") from error
        _check(self.path, document)
        try:
            saved = read_tensors(self.path / document["tensors"])
        except (OSError, ValueError) as error:
            raise TrainingError(f"state {self.path}: {document['tensors']}: {error}") from error
        if saved.sha256 != document["sha256"]:
            raise TrainingError(f"state {self.path}: {document['tensors']} is not the file that was saved")
        plan = document["fingerprint"].get("plan")
        if isinstance(plan, dict) and "hard_share" in plan:
            plan["label_weight"] = plan.pop("hard_share")  # its name until then
        return Saved(document["fingerprint"], document["progress"], saved.tensors)

    def remove(self) -> None:
        """Remove the state, and the folder where nothing else lies in it."""
        with contextlib.suppress(FileNotFoundError):
            (self.path / DOCUMENT).unlink()
        self._remove_all_but(None)
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def _commit(self, data: bytes) -> None:
        new = self.path / f"{DOCUMENT}.new"
        with open(new, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self.path / DOCUMENT)
        sync(self.path)

    def _current(self) -> str | None:
        """The name of the tensors' file that state.json names."""
        try:
            return str(parse_json((self.path / DOCUMENT).read_bytes())["tensors"])
        except (OSError, ValueError):
            return None

    def _remove_all_but(self, name: str | None) -> None:
        for path in [*self.path.glob(f"*{SUFFIX}"), self.path / f"{DOCUMENT}.new"]:
            if path.name != name:
                with contextlib.suppress(OSError):
                    path.unlink()


def check_fingerprint(path: Path, saved: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Refuse a state of another run.

    Raises:
        TrainingError: names the first member that differs, and both values.
    """
    for name in (*expected, *(name for name in saved if name not in expected)):
        if saved.get(name) != expected.get(name):
            old, new = (quoted(values.get(name)) for values in (saved, expected))
            raise TrainingError(
                f"state {path} is of another run: its {name} is {old}, here it is {new}; "
                "repeat the command that began it, or remove the folder to begin anew"
            )


def _check(path: Path, document: Any) -> None:
    members = {"format": int, "fingerprint": dict, "progress": dict, "tensors": str, "sha256": str}
    whole = isinstance(document, dict) and set(document) == set(members)
    if not whole or not all(type(document[name]) is kind for name, kind in members.items()):
        raise TrainingError(f"state {path}: {DOCUMENT} must hold {', '.join(members)}, not {quoted(document)}")
    if document["format"] != FORMAT:
        raise TrainingError(f"state {path}: format {document['format']} is not the {FORMAT} this milkweed reads")
    name = document["tensors"]
    if Path(name).name != name or not name.endswith(SUFFIX):
        raise TrainingError(f"state {path}: tensors {quoted(name)} is not the plain name of a file in the folder")
