"""A state is whole at every instant: whatever fails or dies while it is saved, the one before is there."""

import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from milkweed.models.training import StateFolder, TrainingError
from milkweed.models.training import state as module

OLD = {"model/w": torch.arange(6.0).view(2, 3), "moments/w/step": torch.tensor(7.0), "n": torch.tensor([1, 2])}
NEW = {"model/w": torch.ones(2, 3)}


class Killed(BaseException):
    """What no handler of ours catches, as SIGKILL."""


def save_old(path: Path) -> StateFolder:
    folder = StateFolder(path)
    folder.save({"lr": 0.1, "plan": {"hard_share": 0.5}}, {"step": 7, "loss_sum": 0.1 + 0.2}, OLD)
    return folder


def test_what_was_saved_is_loaded_to_the_bit(tmp_path: Path) -> None:
    folder = save_old(tmp_path / "state")
    saved = folder.load()
    assert saved is not None
    assert saved.fingerprint == {"lr": 0.1, "plan": {"label_weight": 0.5}}  # by the member's name of today
    assert saved.progress == {"step": 7, "loss_sum": 0.1 + 0.2}
    assert saved.tensors.keys() == OLD.keys()
    assert all(torch.equal(saved.tensors[name], OLD[name]) for name in OLD)
    folder.save({"lr": 0.1}, {"step": 8}, NEW)
    assert len(list((tmp_path / "state").iterdir())) == 2
    folder.remove()
    assert not (tmp_path / "state").exists()
    assert folder.load() is None


@pytest.mark.parametrize("where", ["write_tensors", "hashlib.file_digest", "os.replace", "sync"])
@pytest.mark.parametrize("before", [True, False])
def test_killed_while_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, before: bool) -> None:
    folder = save_old(tmp_path)
    library, _, name = where.rpartition(".")
    owner: Any = sys.modules[library] if library else module
    real: Callable[..., Any] = getattr(owner, name)

    def die(*args: Any) -> Any:
        if not before:
            real(*args)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, die)
        with pytest.raises(Killed):
            folder.save({"lr": 0.1}, {"step": 8}, NEW)
    saved = folder.load()
    assert saved is not None
    wanted = NEW if where == "os.replace" and not before else OLD
    assert saved.progress["step"] == (8 if wanted is NEW else 7)
    assert torch.equal(saved.tensors["model/w"], wanted["model/w"])
    folder.save({"lr": 0.1}, {"step": 9}, NEW)
    assert len(list(tmp_path.iterdir())) == 2, "what the dead left is cleared away"


def test_a_full_disk_leaves_the_state_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_old(tmp_path)

    def fill(path: Path, tensors: Any) -> None:
        path.write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_tensors", fill)
        with pytest.raises(
            TrainingError, match=r"cannot be saved: No space left on device; the last one saved is kept"
        ):
            folder.save({"lr": 0.1}, {"step": 8}, NEW)
    assert len(list(tmp_path.iterdir())) == 2, "what did not fit is cleared away"
    saved = folder.load()
    assert saved is not None
    assert saved.progress["step"] == 7


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    folder = save_old(tmp_path)
    (tmp_path / "state.json.new").symlink_to("/dev/full")
    with pytest.raises(TrainingError, match="No space left on device"):
        folder.save({"lr": 0.1}, {"step": 8}, NEW)
    saved = folder.load()
    assert saved is not None
    assert saved.progress["step"] == 7


def test_only_one_process_trains_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with StateFolder(path).locked():
        for _ in range(2):
            with pytest.raises(TrainingError, match="another process trains there"), StateFolder(path).locked():
                pass
    assert not path.exists(), "nothing was saved"
    with StateFolder(path).locked():
        save_old(path)
    files = sorted(path.iterdir())
    with StateFolder(path).locked():
        assert StateFolder(path).load() is not None
    assert sorted(path.iterdir()) == files


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = StateFolder(tmp_path / "file/state")
    with pytest.raises(TrainingError, match="cannot be saved: Not a directory"), folder.locked():
        pass


def test_a_broken_state_is_named(tmp_path: Path) -> None:
    folder = save_old(tmp_path)
    document = json.loads((tmp_path / "state.json").read_bytes())
    (tensors,) = tmp_path.glob("*.safetensors")
    data = bytearray(tensors.read_bytes())
    data[-1] ^= 1
    tensors.write_bytes(data)
    with pytest.raises(TrainingError, match="is not the file that was saved"):
        folder.load()
    for changed, message in (
        ({**document, "tensors": "../x.safetensors"}, "not the plain name of a file"),
        ({**document, "format": 2}, "format 2 is not the 1"),
        ({name: document[name] for name in ("format", "tensors")}, "must hold format, fingerprint"),
        ([], "must hold format, fingerprint"),
    ):
        (tmp_path / "state.json").write_text(json.dumps(changed))
        with pytest.raises(TrainingError, match=message):
            folder.load()
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(TrainingError, match="not JSON"), folder.locked():
        folder.load()
    assert tensors.exists(), "what cannot be read is not removed"
