"""Weights that timm publishes are fetched by name; without a network the error explains what to do."""

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub import errors
from torch import nn

from milkweed.models import create_model, import_checkpoint, load_bundle
from milkweed.models.errors import CheckpointError
from milkweed.models.importing import read_checkpoint
from milkweed.models.importing.hub import fetch_weights

from . import containers

NAME = "deit_tiny_patch16_224"
TINY = containers.CONFIG["model_args"]
REPOSITORY = "timm/deit_tiny_patch16_224.fb_in1k"


def published(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[Any]:
    """Let the hub answer with a folder; what it is asked for."""
    asked = []

    def snapshot_download(repository: str, revision: None, allow_patterns: list[str]) -> str:
        asked.append((repository, allow_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return asked


def test_a_name_becomes_a_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model: nn.Module = create_model(NAME, num_classes=3, **TINY)
    asked = published(monkeypatch, containers.hugging_face(tmp_path, dict(model.state_dict()), None))
    report = import_checkpoint(f"timm:{NAME}", None, tmp_path / "b")
    assert asked == [(REPOSITORY, ["config.json", "model.safetensors"])]
    loaded, config = load_bundle(tmp_path / "b")
    assert config.arch == NAME
    assert config.preprocess["mean"] == [0.1, 0.2, 0.3]
    source = config.provenance["source"]
    assert source["file"] == f"timm:{NAME}"
    assert source["sha256"] == report.info.sha256 == read_checkpoint(tmp_path / "hub")[1].sha256
    x = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(loaded(x), model(x))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mixer_s16_224", "timm:mixer_s16_224: timm publishes no weights of that name"),
        ("vit_tiny_patch16_224.nothing", "timm publishes no weights of that name"),
        ("nothing", "timm publishes no weights of that name"),
    ],
)
def test_names_without_published_weights_are_refused(name: str, message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        fetch_weights(f"timm:{name}")
    assert message in str(caught.value)


def test_an_architecture_that_is_not_built_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = published(monkeypatch, tmp_path)
    with pytest.raises(ValueError, match="unknown architecture 'nothing_like_it'"):
        import_checkpoint("timm:nothing_like_it", None, tmp_path / "b")
    assert not asked


def test_without_a_network_the_error_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError) as caught:
        import_checkpoint(f"timm:{NAME}", None, tmp_path / "b")
    said = str(caught.value)
    assert said.startswith(
        f"timm:{NAME}: not in this machine's cache, and not to be had from huggingface.co/{REPOSITORY} ("
    )
    assert said.endswith("): fetch config.json and model.safetensors elsewhere and import their folder")
    assert "\n" not in said


def test_a_repository_without_safetensors_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(containers.CONFIG))
    published(monkeypatch, tmp_path)
    with pytest.raises(CheckpointError, match=rf"huggingface\.co/{REPOSITORY} has no model\.safetensors"):
        fetch_weights(f"timm:{NAME}")


@pytest.mark.parametrize("name", ["hf://someone/newts", "hf://someone/newts@main", "hf:/someone/newts"])
def test_a_repository_becomes_a_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    hub = containers.hugging_face(tmp_path, dict(create_model(NAME, num_classes=3, **TINY).state_dict()), None)
    asked = published(monkeypatch, hub.rename(tmp_path / ("c" * 40)))
    report = import_checkpoint(name, None, tmp_path / "b")
    assert asked == [("someone/newts", [*asked[0][1]])]
    assert not any(pattern.endswith((".bin", "*")) for pattern in asked[0][1])
    source = report.config.provenance["source"]
    assert (source["file"], source["commit"]) == (name, "c" * 40)


def test_pickles_are_fetched_only_where_there_is_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = published(monkeypatch, tmp_path)
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda *a, **k: ["a.safetensors", "b.pth", "README"])
    with pytest.raises(CheckpointError) as caught:
        fetch_weights("hf://someone/newts")
    assert str(caught.value) == (
        "hf://someone/newts: huggingface.co/someone/newts has no model.safetensors and no pytorch_model.bin: download "
        "one of a.safetensors, b.pth and import that file"
    )
    assert ["pytorch_model.bin" in patterns for _, patterns in asked] == [False, True]


def refused_by(kind: type[Exception]) -> Exception:
    """An error of the hub's client, which wants the answer that caused it."""
    error = kind.__new__(kind)
    OSError.__init__(error, "403 Client Error. (Request ID: Root=1-2)")
    return error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            refused_by(errors.GatedRepoError),
            "someone/newts is gated: accept its terms there, and set HF",
        ),
        (refused_by(errors.RevisionNotFoundError), "huggingface.co/someone/newts has no revision v9"),
        (
            refused_by(errors.RepositoryNotFoundError),
            r"not to be had from .*newts \(403 Client Error\)",
        ),
        (OSError(28, "No space left on device"), "cannot be kept in this machine's cache: No space left on device"),
        (RuntimeError("down"), r"not to be had from huggingface.co/someone/newts \(down\)"),
    ],
)
def test_what_the_hub_says_is_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception, message: str) -> None:
    def fails(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fails)
    with pytest.raises(CheckpointError, match=rf"^hf://someone/newts@v9: [^\n]*{message}[^\n]*$"):
        fetch_weights("hf://someone/newts@v9")


@pytest.mark.parametrize("name", ["hf://newts", "hf://a/b/c", "hf://a/b@", "hf://a/../b", "hf://a/b?x"])
def test_what_names_no_repository_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match=r"must be hf://ORG/REPO or hf://ORG/REPO@REVISION"):
        fetch_weights(name)
