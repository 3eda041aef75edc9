"""Opens models as a server does, and says what a backend's forward takes."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from milkweed.inference import backend
from milkweed.server.config.settings import Settings
from milkweed.server.repository.served_model import ServedModel, open_model


def opened(bundle: Path, **settings: Any) -> ServedModel:
    return open_model("colours", bundle, Settings(device="cpu", **settings))


def pixels(count: int) -> Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def measured(monkeypatch: pytest.MonkeyPatch, *seconds: Sequence[float]) -> None:
    """What the candidates take, for each batch size."""
    turns = itertools.cycle(seconds)
    monkeypatch.setattr(backend, "_medians", lambda forwards, size: list(next(turns))[: len(forwards)])
