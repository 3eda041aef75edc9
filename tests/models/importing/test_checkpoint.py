"""Published checkpoint containers are read for their weights, and nothing in them is run."""

import argparse
import hashlib
import json
import pickle
import tarfile
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from milkweed.models.errors import CheckpointError
from milkweed.models.importing.checkpoint import read_checkpoint

from .containers import Payload

WEIGHTS = {"head.weight": torch.arange(6.0).view(2, 3), "norm.bias": torch.ones(3)}
EMA = {key: tensor + 10 for key, tensor in WEIGHTS.items()}


def saved(path: Path, document: Any, **options: Any) -> Path:
    torch.save(document, path, **options)
    return path


def same(state: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return list(state) == list(expected) and all(torch.equal(state[key], expected[key]) for key in expected)


def refuse(path: Path, message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    ("document", "wrapper", "expected"),
    [
        ({"state_dict": WEIGHTS, "state_dict_ema": EMA, "epoch": 3}, "state_dict_ema", EMA),
        ({"state_dict": WEIGHTS, "model": EMA}, "state_dict", WEIGHTS),
        ({"model": WEIGHTS, "optimizer": {"state": {}}}, "model", WEIGHTS),
        ({"model": WEIGHTS, "model_ema": EMA}, "model_ema", EMA),
        ({"model_state_dict": WEIGHTS, "loss": 0.5}, "model_state_dict", WEIGHTS),
        ({"state_dict_ema": None, "state_dict": OrderedDict(WEIGHTS)}, "state_dict", WEIGHTS),
        (WEIGHTS, "", WEIGHTS),
    ],
)
def test_unwraps_ema_first(tmp_path: Path, document: Any, wrapper: str, expected: Any, legacy: bool) -> None:
    path = saved(tmp_path / "x.pth", document, _use_new_zipfile_serialization=not legacy)
    state, info = read_checkpoint(path)
    assert same(state, expected)
    assert info.wrapper == wrapper
    assert info.container == ("torch legacy" if legacy else "torch zip")
    assert info.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "prefix", ["module.", "model.", "module.model.", "model.module.", "_orig_mod.", "_forward_module.model."]
)
def test_prefixes_are_taken_off(tmp_path: Path, prefix: str) -> None:
    path = saved(tmp_path / "x.ckpt", {"state_dict": {prefix + key: tensor for key, tensor in WEIGHTS.items()}})
    state, info = read_checkpoint(path)
    assert same(state, WEIGHTS)
    assert "".join(info.stripped) == prefix


def test_a_key_with_and_without_prefix_is_refused(tmp_path: Path) -> None:
    refuse(saved(tmp_path / "x.pth", {**WEIGHTS, "module.norm.bias": torch.zeros(3)}), "'norm.bias' is there twice")


def test_safetensors_by_content_whatever_the_name(tmp_path: Path) -> None:
    for name in ("x.safetensors", "x.bin"):
        save_file(WEIGHTS, tmp_path / name)
        state, info = read_checkpoint(tmp_path / name)
        assert {key: tensor.tolist() for key, tensor in state.items()} == {
            key: tensor.tolist() for key, tensor in WEIGHTS.items()
        }
        assert (info.container, info.wrapper, info.facts) == ("safetensors", "", {})


def test_a_whole_pickled_model_and_a_plain_pickle_are_refused(tmp_path: Path) -> None:
    refuse(
        saved(tmp_path / "x.pth", torch.nn.Linear(2, 2)), "holds torch.nn.modules.linear.Linear, which is not weights"
    )
    (tmp_path / "y.pth").write_bytes(pickle.dumps(Payload(tmp_path / "pwned")))
    refuse(tmp_path / "y.pth", "")
    assert not (tmp_path / "pwned").exists()


def test_missing_files_and_other_formats_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(tmp_path / "nowhere.pth", "no such file")
    monkeypatch.chdir(tmp_path)
    name = "deit_tiny_patch16_224"
    refuse(Path(name), f"no such file; the weights that timm publishes are fetched as timm:{name}")
    with pytest.raises(CheckpointError, match=r"deit_tiny: no such file$"):
        read_checkpoint("deit_tiny")
    refuse(tmp_path, "a folder with none of model.safetensors, model.safetensors.index.json, pytorch_model.bin, ")
    (tmp_path / "x.pth").write_bytes(b"<html>quota exceeded</html>")
    refuse(tmp_path / "x.pth", "an HTML page, not the file")
    (tmp_path / "t.pth").write_bytes(b"some text")
    refuse(tmp_path / "t.pth", "not a checkpoint: neither a torch file nor safetensors (begins with b'some tex')")
    (tmp_path / "e.pth").write_bytes(b"")
    refuse(tmp_path / "e.pth", "not a checkpoint")
    with zipfile.ZipFile(tmp_path / "z.pth", "w") as archive:
        archive.writestr("readme.txt", "x")
    refuse(tmp_path / "z.pth", "damaged or not a torch checkpoint")
    with tarfile.open(tmp_path / "t.pth.tar", "w") as archive:
        archive.add(tmp_path / "z.pth")
    refuse(tmp_path / "t.pth.tar", "a tar archive: unpack it first (what is called .pth.tar is none)")


@pytest.mark.parametrize("keep", [3, 20, 300, -30])
@pytest.mark.parametrize("legacy", [False, True])
def test_truncated_files_are_refused(tmp_path: Path, keep: int, legacy: bool) -> None:
    path = saved(tmp_path / "x.pth", WEIGHTS, _use_new_zipfile_serialization=not legacy)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"^[^\n]*$"):
        read_checkpoint(path)


def test_a_truncated_safetensors_file_is_refused(tmp_path: Path) -> None:
    save_file(WEIGHTS, tmp_path / "x.safetensors")
    (tmp_path / "x.safetensors").write_bytes((tmp_path / "x.safetensors").read_bytes()[:-4])
    refuse(tmp_path / "x.safetensors", "truncated: the header describes 36 bytes of tensors, the file holds 32")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"optimizer": {}, "epoch": 3}, "no weights found: it holds 'optimizer', 'epoch'"),
        ({"state_dict": {}}, "no weights found"),
        ({}, "no weights found: it holds nothing"),
        ([torch.zeros(2)], "holds a list, not a dict of weights"),
        (torch.zeros(2), "holds a Tensor, not a dict of weights"),
    ],
)
def test_files_without_weights_are_refused(tmp_path: Path, document: Any, message: str) -> None:
    refuse(saved(tmp_path / "x.pth", document), message)


def test_facts_are_small_and_can_be_written_as_json(tmp_path: Path) -> None:
    plain = {"epoch": 299, "arch": "ViTAE_basic_Tiny", "metric": 75.3}
    odd = {"loss": float("nan"), "best": float("inf"), 7: 1, "args": argparse.Namespace(lr=1e-3), "optimizer": {}}
    _, info = read_checkpoint(saved(tmp_path / "x.pth", {"state_dict": WEIGHTS, "note": "x" * 9999, **plain, **odd}))
    assert info.facts == {"note": "x" * 200, **plain}
    json.dumps(info.facts, allow_nan=False)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(3).to_sparse(),
        torch.zeros(3, dtype=torch.complex64),
        torch.zeros(3, device="meta"),
    ],
)
def test_a_tensor_that_is_not_plain_is_refused(tmp_path: Path, tensor: Tensor) -> None:
    refuse(saved(tmp_path / "x.pth", {"a.weight": tensor, "b": torch.zeros(1)}), "'a.weight' is ")


@pytest.mark.parametrize("name", ["model.safetensors", "x.pth", "pytorch_model.bin"])
def test_a_pointer_in_the_place_of_weights_is_called_one(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d4d\nsize 22883204\n")
    refuse(tmp_path / name, "a Git LFS pointer, not the file: git lfs pull fetches it")
    (tmp_path / name).write_text("/annex/objects/SHA256E-s1--4d.pth")
    refuse(tmp_path / name, "a git-annex pointer")
