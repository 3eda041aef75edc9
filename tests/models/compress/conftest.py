"""Fixtures of the compression tests: the bundle of a tiny ViT, and no drawing."""

from pathlib import Path

import pytest
from torch import nn

from milkweed.models import save_bundle

from ..conftest import make_vit
from ..tiny import TINY_VIT, config_of

ARCH = "deit_tiny_patch16_224"


@pytest.fixture(autouse=True)
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the drawing, which takes longer than all else here."""
    monkeypatch.setattr("milkweed.models.report.page.render_page", lambda report: report.version)


def saved(path: Path, model: nn.Module) -> Path:
    """Write a tiny ViT of six classes as a bundle."""
    provenance = {"source": {"file": "x"}, "commands": [{"command": "import"}]}
    save_bundle(path, model, config_of(model, ARCH, TINY_VIT, 6, metrics={"top1": 0.9}, provenance=provenance))
    return path


@pytest.fixture(scope="session")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of `vit`, which no test changes."""
    return saved(tmp_path_factory.mktemp("compress") / "bundle", make_vit())
