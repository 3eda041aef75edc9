"""Extra files of a bundle are written with it, are no part of its version, and can only be reports."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from milkweed.models import BundleConfig, load_bundle, read_config, save_bundle
from milkweed.models.errors import BundleError

FILES = {"report.html": b"<!doctype html>", "report.json": b"{}"}


def test_extras_lie_beside_and_change_nothing(
    tmp_path: Path, tiny_bundle: Path, tiny_config: BundleConfig, model: nn.Module
) -> None:
    config = save_bundle(tmp_path / "b", model, tiny_config, extras=FILES)
    assert {name: (tmp_path / "b" / name).read_bytes() for name in FILES} == FILES
    assert config == read_config(tmp_path / "b") == read_config(tiny_bundle)
    assert set(config.files) == {"model.safetensors", "labels.json"}
    (tmp_path / "b" / "report.json").write_bytes(b"anything")
    assert load_bundle(tmp_path / "b")[1] == config


def test_extras_are_made_of_the_finished_config(tmp_path: Path, tiny_config: BundleConfig, model: nn.Module) -> None:
    config = save_bundle(
        tmp_path / "b",
        model,
        tiny_config,
        extras=lambda config: {"report.json": json.dumps([config.version, config.bytes_on_disk]).encode()},
    )
    written = json.loads((tmp_path / "b" / "report.json").read_text())
    assert written == [config.version, config.bytes_on_disk]
    assert config.version == read_config(tmp_path / "b").version


def test_a_new_bundle_does_not_keep_the_old_ones_report(
    tmp_path: Path, tiny_config: BundleConfig, model: nn.Module
) -> None:
    save_bundle(tmp_path / "b", model, tiny_config, extras=FILES)
    save_bundle(tmp_path / "b", model, tiny_config, overwrite=True)
    assert not {path.name for path in (tmp_path / "b").iterdir()} & set(FILES)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "../report.html", "report.pdf", ""])
def test_other_names_are_refused(tmp_path: Path, tiny_config: BundleConfig, model: nn.Module, name: str) -> None:
    with pytest.raises(BundleError, match=r"cannot lie in a bundle: only report\.html, report\.json can"):
        save_bundle(tmp_path / "b", model, tiny_config, extras={name: b""})
    assert list(tmp_path.iterdir()) == []


def test_extras_that_cannot_be_made_leave_the_old_bundle(
    tmp_path: Path, tiny_config: BundleConfig, model: nn.Module
) -> None:
    save_bundle(tmp_path / "b", model, tiny_config, extras=FILES)
    version = read_config(tmp_path / "b").version
    with torch.no_grad():
        model.get_parameter("head.bias")[0] += 1

    def fail(config: BundleConfig) -> dict[str, bytes]:
        assert config.version != version
        raise ImportError("no matplotlib")

    with pytest.raises(ImportError, match="no matplotlib"):
        save_bundle(tmp_path / "b", model, tiny_config, overwrite=True, extras=fail)
    assert read_config(tmp_path / "b").version == version
    assert (tmp_path / "b" / "report.json").read_bytes() == b"{}"
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
