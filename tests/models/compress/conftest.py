"""Fixtures of the compression tests: bundles of a tiny ViT, and no drawing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from milkweed.models import save_bundle

from ..tiny import config_of

ARCH = "deit_tiny_patch16_224"


@pytest.fixture(autouse=True)
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the drawing, which takes longer than all else here."""
    monkeypatch.setattr("milkweed.models.report.page.render_page", lambda report: report.version)


@pytest.fixture
def saved(tmp_path: Path, tiny_vit: dict[str, Any]) -> Callable[[nn.Module], Path]:
    """Write a tiny ViT of six classes as a bundle."""

    def save(model: nn.Module) -> Path:
        provenance = {"source": {"file": "x"}, "commands": [{"command": "import"}]}
        config = config_of(model, ARCH, tiny_vit, 6, metrics={"top1": 0.9}, provenance=provenance)
        save_bundle(tmp_path / "bundle", model, config)
        return tmp_path / "bundle"

    return save
