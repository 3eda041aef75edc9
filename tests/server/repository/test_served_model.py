"""Opening a bundle: whatever goes wrong on the way, none of its threads is left."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from milkweed.inference import backend
from milkweed.inference import open as opening
from milkweed.inference.forward import Forward, LanePlan
from milkweed.inference.pipeline import Pipeline
from milkweed.server.config.settings import Settings
from milkweed.server.repository.served_model import open_model

from ...support.server_parts import HeldModel


@contextmanager
def failing() -> Iterator[None]:
    before = set(threading.enumerate())
    with pytest.raises(RuntimeError, match="device-side assert") as caught:
        yield
    assert caught.value.__traceback__ is not None  # whoever logs it keeps what it holds
    assert not {thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("milkweed-")}


def fail(*_: Any, **__: Any) -> Any:
    raise RuntimeError("CUDA error: device-side assert triggered")


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (opening, "plan_lanes"),
        (Forward, "__init__"),
        (Forward, "warm_up"),
        (opening, "choose_backend"),
        (Pipeline, "check_golden"),
        (opening, "trim_heap"),
    ],
)
def test_a_bundle_that_fails_leaves_no_thread(
    colour_bundle: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    monkeypatch.setattr(owner, name, fail)
    with failing():
        open_model("colours", colour_bundle, Settings(device="cpu", decode_threads=2, lanes=2))


def test_an_engine_that_cannot_be_measured_leaves_no_thread(
    colour_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def onnx_forward(forward: Forward, *_: Any) -> Forward:
        model = HeldModel()
        made = Forward(model, LanePlan(1, 2, 1), device=forward.device, dtype=forward.dtype, size=forward.size)
        made.run(made.blank(4))
        return made

    monkeypatch.setattr(backend, "_onnx_forward", onnx_forward)
    monkeypatch.setattr(backend, "_faster", fail)
    with failing():
        open_model("colours", colour_bundle, Settings(device="cpu", backend="auto", lanes=2))
