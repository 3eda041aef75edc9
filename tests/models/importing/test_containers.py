"""Every container is imported from a file made in exactly its layout; what else is in it never runs."""

import json
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from milkweed.models import Label, create_model, import_checkpoint, load_bundle, save_bundle
from milkweed.models.bundle.storage import storable_weights
from milkweed.models.errors import CheckpointError
from milkweed.models.importing import read_checkpoint

from ..tiny import logits
from . import containers

ARCH = "deit_tiny_patch16_224"


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return create_model(ARCH, num_classes=3, **containers.CONFIG["model_args"]).requires_grad_(False)


@pytest.fixture(scope="module")
def state(model: nn.Module) -> dict[str, Tensor]:
    return {key: tensor.clone() for key, tensor in model.state_dict().items()}


@pytest.mark.parametrize("kind", containers.CONTAINERS)
def test_every_container_gives_the_models_logits(
    tmp_path: Path, model: nn.Module, state: dict[str, Tensor], kind: str
) -> None:
    path = containers.CONTAINERS[kind](tmp_path, state, None)
    report = import_checkpoint(path, ARCH, tmp_path / "b", arch_args=containers.CONFIG["model_args"])
    loaded, config = load_bundle(tmp_path / "b")
    assert torch.equal(logits(loaded), logits(model))
    assert config.num_classes == 3
    assert config.provenance["source"]["file"] == path.name
    assert len(report.info.sha256) == 64


@pytest.mark.parametrize("kind", containers.PICKLED)
def test_a_payload_in_any_container_is_refused_and_does_not_run(
    tmp_path: Path, state: dict[str, Tensor], kind: str
) -> None:
    target = tmp_path / "pwned"
    path = containers.CONTAINERS[kind](tmp_path, state, containers.Payload(target))
    with pytest.raises(CheckpointError, match=r"^[^\n]* holds posix\.mkdir, which is not weights: refused, nothing"):
        import_checkpoint(path, ARCH, tmp_path / "b", arch_args=containers.CONFIG["model_args"])
    assert not target.exists()
    assert not (tmp_path / "b").exists()


def test_the_payload_is_real(tmp_path: Path, state: dict[str, Tensor]) -> None:
    path = containers.timm_tar(tmp_path, state, containers.Payload(tmp_path / "pwned"))
    torch.load(path, weights_only=False)
    assert (tmp_path / "pwned").exists()


def test_a_pickle_inside_a_pickle_is_bytes(tmp_path: Path, state: dict[str, Tensor]) -> None:
    path = containers.timm_tar(tmp_path, state, pickle.dumps(containers.Payload(tmp_path / "pwned")))
    assert read_checkpoint(path)[1].wrapper == "state_dict_ema"
    assert not (tmp_path / "pwned").exists()


def rewritten(path: Path, member: str, data: bytes) -> Path:
    """A torch file with another pickle in it."""
    out = path.with_suffix(".changed")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            new.writestr(name, data if name.endswith(member) else old.read(name))
    return out


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "posix.system",
        "subprocess.Popen",
        "builtins.eval",
        "builtins.exec",
        "builtins.getattr",
        "builtins.__import__",
        "importlib.import_module",
        "pathlib.Path.mkdir",
        "omegaconf.omegaconf.OmegaConf.load",
        "torch.load",
        "torch.hub.load",
        "torch.serialization.load",
        "shutil.rmtree",
        "numpy.load",
    ],
)
def test_no_function_can_be_named(tmp_path: Path, name: str) -> None:
    torch.save({"a": torch.zeros(1)}, tmp_path / "x.pth")
    module, _, function = name.rpartition(".")
    called = b"\x80\x02c" + module.encode() + b"\n" + function.encode() + b"\n(X\x01\x00\x00\x00xtR."
    with pytest.raises(CheckpointError, match=r"x\.changed: [^\n]*(which is not weights: refused|is blocked)"):
        read_checkpoint(rewritten(tmp_path / "x.pth", "data.pkl", called))


def test_a_stand_in_for_an_object_keeps_and_does_nothing(tmp_path: Path) -> None:
    """An allowed name may be called with anything: it is a stand-in, not what it names."""
    torch.save({"a": torch.zeros(1)}, tmp_path / "x.pth")
    target = str(tmp_path / "made").encode()
    text = b"X" + len(target).to_bytes(4, "little") + target
    for name in (b"cpathlib\nPosixPath\n", b"comegaconf.dictconfig\nDictConfig\n", b"cnumpy\ndtype\n"):
        data = b"\x80\x02}X\x01\x00\x00\x00a" + name + b"(" + text + b"tRs."
        with pytest.raises(CheckpointError, match="no weights found: it holds 'a'"):
            read_checkpoint(rewritten(tmp_path / "x.pth", "data.pkl", data))
    assert "omegaconf" not in sys.modules
    assert not (tmp_path / "made").exists()


def test_programs_are_refused(tmp_path: Path) -> None:
    """TorchScript, and NumPy archives, whose object arrays are pickles."""
    torch.save({"a": torch.zeros(1)}, tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "x.pt", "a") as archive:
        archive.writestr("x/constants.pkl", pickle.dumps(containers.Payload(tmp_path / "pwned")))
        archive.writestr("x/code/__torch__.py", "import os")
    with pytest.raises(CheckpointError, match="a TorchScript archive, which is a program: nothing in it was run"):
        read_checkpoint(tmp_path / "x.pt")
    np.savez(tmp_path / "x.npz", a=np.array([containers.Payload(tmp_path / "pwned")], dtype=object))
    with pytest.raises(CheckpointError, match="an archive of NumPy arrays, not of torch"):
        read_checkpoint(tmp_path / "x.npz")
    assert not (tmp_path / "pwned").exists()


def test_a_hugging_face_folder_is_imported_as_its_config_says(tmp_path: Path, state: dict[str, Tensor]) -> None:
    path = containers.hugging_face(tmp_path, state, None)
    config = import_checkpoint(path, None, tmp_path / "b").config
    assert config.arch == ARCH
    assert config.arch_args == {"num_classes": 3, **containers.CONFIG["model_args"]}
    assert config.labels == (Label("n01", "cat"), Label("n02", "dog"), Label("n03", "n03"))
    assert config.preprocess == {
        "size": 32,
        "crop_pct": 0.875,
        "interpolation": "bilinear",
        "mean": [0.1, 0.2, 0.3],
        "std": [0.4, 0.5, 0.6],
    }
    given = import_checkpoint(
        path, None, tmp_path / "c", preprocess={"crop_pct": 1.0}, labels=[Label(i, i) for i in "abc"]
    ).config
    assert (given.preprocess["crop_pct"], given.preprocess["mean"]) == (1.0, [0.1, 0.2, 0.3])
    assert given.labels[0] == Label("a", "a")


def spoil(path: Path, change: Any) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("weight_map"), "has no weight_map"),
        (lambda d: d["weight_map"].update(a="../x.safetensors"), "names '../x.safetensors', not a file beside it"),
        (lambda d: d["weight_map"].update(a="/etc/passwd"), "names '/etc/passwd', not a file beside it"),
        (lambda d: d["weight_map"].update(a=["x"]), "names ['x'], not a file beside it"),
        (lambda d: d["weight_map"].update(a="x.safetensors"), "1 of 3 shards are not beside it, first x.safetensors"),
        (
            lambda d: d["weight_map"].update(a=next(iter(d["weight_map"].values()))),
            "does not hold 'a', which the index says it does",
        ),
    ],
)
def test_shards_that_do_not_follow_their_index_are_refused(
    tmp_path: Path, state: dict[str, Tensor], change: Any, message: str
) -> None:
    path = containers.shards(tmp_path, state, None)
    spoil(path / "model.safetensors.index.json", change)
    with pytest.raises(CheckpointError, match=r"^[^\n]*$") as caught:
        read_checkpoint(path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("files", "latest", "message"),
    [
        (
            ["zero_pp_rank_0_mp_rank_00_model_states.pt", "zero_pp_rank_1_mp_rank_00_model_states.pt"],
            "t",
            "in 2 files of ZeRO",
        ),
        (["mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt"], "t", "the model is split over 2 devices: merge"),
        (["zero_pp_rank_0_mp_rank_00_optim_states.pt"], "t", "holds no mp_rank_00_model_states.pt"),
        ([], "../t", "its file latest names '../t', which is no folder in it"),
        ([], "gone", "its file latest names 'gone', which is no folder in it"),
    ],
)
def test_deepspeed_folders_without_the_whole_model_are_refused(
    tmp_path: Path, files: list[str], latest: str, message: str
) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "latest").write_text(latest)
    for name in files:
        (tmp_path / "t" / name).write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"^[^\n]*$") as caught:
        read_checkpoint(tmp_path)
    assert message in str(caught.value)


def test_the_folder_of_a_single_deepspeed_step_is_read(tmp_path: Path, state: dict[str, Tensor]) -> None:
    path = containers.deepspeed(tmp_path, state, None)
    assert read_checkpoint(path / "checkpoint")[1].container == "DeepSpeed folder, torch zip"


def test_a_bundle_is_refused(tiny_bundle: Path) -> None:
    with pytest.raises(CheckpointError, match="is a bundle of milkweed already"):
        read_checkpoint(tiny_bundle)


def test_the_weights_of_an_int8_bundle_alone_are_refused(tmp_path: Path, tiny_bundle: Path) -> None:
    loaded, config = load_bundle(tiny_bundle)
    layer = next(iter(storable_weights(loaded)))
    save_bundle(tmp_path / "int8", loaded, config, storage={layer: "int8"})
    with pytest.raises(
        CheckpointError, match=r"is int8 with scales, as in a bundle of milkweed: give the bundle's folder"
    ):
        import_checkpoint(tmp_path / "int8" / "model.safetensors", config.arch, tmp_path / "b")
