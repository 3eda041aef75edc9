"""Fixtures of the compression tests: bundles of a tiny ViT, and no drawing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from milkweed.models import BundleConfig, save_bundle
from milkweed.models.architectures.registry import default_preprocess
from milkweed.models.bundle.labels import default_labels

ARCH = "deit_tiny_patch16_224"


@pytest.fixture(autouse=True)
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the drawing, which takes longer than all else here."""
    monkeypatch.setattr("milkweed.models.report.page.render_page", lambda report: report.version)


@pytest.fixture
def saved(tmp_path: Path, tiny_vit: dict[str, Any]) -> Callable[[nn.Module], Path]:
    """Write a tiny ViT of six classes as a bundle."""

    def save(model: nn.Module) -> Path:
        config = BundleConfig(
            arch=ARCH,
            arch_args={"num_classes": 6, **tiny_vit},
            preprocess=default_preprocess(ARCH, **tiny_vit),
            metrics={"top1": 0.9},
            labels=default_labels(6),
        )
        save_bundle(tmp_path / "bundle", model, config)
        return tmp_path / "bundle"

    return save
