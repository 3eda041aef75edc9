"""`milkweed demo imagenet`: made once of weights that are installed, then served; nothing is fetched."""

import os
from pathlib import Path

import pytest
import timm
import torch
from typer.testing import CliRunner

from milkweed.cli.app import build_app
from milkweed.cli.errors import CommandError
from milkweed.cli.serving import demo as demo_module
from milkweed.models import read_config
from milkweed.models.errors import CheckpointError

from ...models.importing.test_efficientnet_keys import original


class ServedInstead(Exception):
    """Stands for the server that would take this process's place."""


def serve_arguments(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `milkweed demo` hands over to `milkweed serve`."""

    def instead(path: str, command: list[str]) -> None:
        raise ServedInstead(*command[4:])

    monkeypatch.setattr(os, "execv", instead)
    result = CliRunner().invoke(build_app("demo"), ["demo", *arguments])
    if isinstance(result.exception, ServedInstead):
        return list(result.exception.args)
    assert result.exception is not None
    raise result.exception


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that has the name of the weights', and a cache of its own."""
    package = tmp_path / "site" / demo_module.PACKAGE
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('nothing of it is run')")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setattr(demo_module, "version", lambda name: "0.1.0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return package


def test_without_the_weights_a_line_says_how_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_module, "find_spec", lambda name: None)
    with pytest.raises(CommandError, match=r"^demo imagenet: its weights are not installed: .*demo"):
        serve_arguments(["imagenet"], monkeypatch)


def test_what_is_there_is_served_with_the_options_of_serve(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "cache" / "milkweed" / "bundles" / "imagenet@0.1.0"
    bundle.mkdir(parents=True)
    (bundle / "config.json").touch()
    served = serve_arguments(["imagenet", "--port", "9000"], monkeypatch)
    assert served == ["serve", f"imagenet={bundle}", "--port", "9000"]
    ran: list[list[str]] = []
    monkeypatch.setattr(demo_module, "run_command", ran.append)
    smaller = f"{bundle}+int8"
    assert serve_arguments(["imagenet", "--images", "photos"], monkeypatch) == ["serve", f"imagenet={smaller}"]
    assert ran == [["compress", str(bundle), smaller, "--images", "photos", "--speedup", "2"]]


@pytest.mark.slow
def test_it_is_made_once_and_whole(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache" / "milkweed" / "bundles"
    torch.save({}, installed / "models" / "empty.pth")
    with pytest.raises(CheckpointError):
        serve_arguments(["imagenet"], monkeypatch)
    assert not list(folder.glob("*imagenet*"))
    torch.save(original(timm.create_model("tf_efficientnet_lite0")), installed / "models" / "empty.pth")
    [_, named] = serve_arguments(["imagenet"], monkeypatch)
    config = read_config(folder / "imagenet@0.1.0")
    assert named == f"imagenet={folder / 'imagenet@0.1.0'}"
    assert (config.labels[9].id, config.labels[9].label) == ("n01518878", "ostrich")
    assert config.graph is not None
