"""Opening a bundle: whatever goes wrong on the way, none of its threads is left."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from milkweed.inference import backend, choice
from milkweed.inference import open as opening
from milkweed.inference.backend import Candidate
from milkweed.inference.forward import Forward, LanePlan
from milkweed.inference.graph import Graph
from milkweed.inference.pipeline import Pipeline
from milkweed.inference.torch_forward import TorchForward
from milkweed.server.config.settings import Settings
from milkweed.server.repository.served_model import open_model

from ...support.server_parts import HeldModel

CPU = torch.device("cpu")


@contextmanager
def failing() -> Iterator[None]:
    before = set(threading.enumerate())
    with pytest.raises(RuntimeError, match="device-side assert") as caught:
        yield
    assert caught.value.__traceback__ is not None  # whoever logs it keeps what it holds
    left = {thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("milkweed-")}
    assert not {name for name in left if not name.startswith(SHARED)}


SHARED = ("milkweed-lane_", "milkweed-load_")
"""Threads of all models, which the first that needs them starts."""


def fail(*_: Any, **__: Any) -> Any:
    raise RuntimeError("CUDA error: device-side assert triggered")


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (opening, "plan_lanes"),
        (TorchForward, "__init__"),
        (Forward, "warm_up"),
        (choice, "fastest"),
        (Forward, "check_golden"),
        (Pipeline, "__init__"),
        (opening, "trim_heap"),
    ],
)
def test_a_bundle_that_fails_leaves_no_thread(
    colour_bundle: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    monkeypatch.setattr(owner, name, fail)
    with failing():
        open_model("colours", colour_bundle, Settings(device="cpu", decode_threads=2, lanes=2))


def test_a_backend_that_cannot_be_measured_leaves_no_thread(
    colour_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def graph_forward(graph: Graph, candidate: Candidate, plan: LanePlan, size: int, **options: Any) -> Forward:
        made = TorchForward(HeldModel(), LanePlan(1, 2, 1), dtype=candidate.dtype, size=size)
        made.run(made.blank(4))
        return made

    monkeypatch.setattr(opening, "exported_graph", lambda *_: Graph(b"", 0))
    monkeypatch.setattr(opening, "graph_forward", graph_forward)
    monkeypatch.setattr(Forward, "check_golden", lambda *_: None)
    monkeypatch.setattr(backend, "_speeds", fail)
    with failing():
        open_model("colours", colour_bundle, Settings(device="cpu", backend="auto", lanes=2))
