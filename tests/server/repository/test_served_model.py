"""Opening a bundle: whatever goes wrong on the way, none of its threads is left."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from milkweed.inference import backend as engine_choice
from milkweed.inference import build as assembly
from milkweed.inference.forward import Forward, LanePlan
from milkweed.inference.pipeline import Pipeline
from milkweed.server.config.settings import Settings
from milkweed.server.repository import served_model as served
from milkweed.server.repository.served_model import open_model


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
        (assembly, "plan_lanes"),
        (Forward, "__init__"),
        (Pipeline, "warm_up"),
        (served, "choose_engine"),
        (Pipeline, "check_golden"),
        (served, "trim_heap"),
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
    def lanes(pipeline: Pipeline, *_: Any) -> tuple[Forward, int]:
        made = Forward(
            pipeline.lanes._probabilities.model, LanePlan(1, 2, 1), device=pipeline.device, dtype=pipeline.dtype
        )
        made.run(pipeline.blank(4))
        return made, 1

    monkeypatch.setattr(engine_choice, "_onnx_lanes", lanes)
    monkeypatch.setattr(engine_choice, "_faster", fail)
    with failing():
        open_model("colours", colour_bundle, Settings(device="cpu", engine="auto", lanes=2))
