"""A model is opened on every device or on none."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from milkweed.models.errors import BundleError
from milkweed.server.device import DeviceError
from milkweed.server.opening import open_on_all
from milkweed.server.settings import Settings


def test_a_device_that_cannot_load_a_model_is_named_and_nothing_stays_open(
    kit: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    closed: list[int] = []
    settings = {place: Settings() for place in (0, 1)}
    names = {0: "cuda:0", 1: "cuda:1"}

    def open_held(name: str, path: Path, settings: Settings) -> Any:
        if len(opened) == 1:
            raise failure
        model = kit.ServedModel.of(
            name, kit.make_config(), kit.make_pipeline(kit.HeldModel()), kit.image_limits(settings), 8
        )
        model.pipeline.close = lambda: closed.append(1)
        opened.append(model)
        return model

    for error, line in (
        (BundleError("bundle x: golden image 0, class 3"), "device cuda:1: bundle x: golden image 0, class 3"),
        (RuntimeError("CUDA out of memory\nmore"), "model held cannot be opened: RuntimeError: CUDA out of memory"),
    ):
        failure = error
        opened: list[Any] = []
        closed.clear()
        with pytest.raises(DeviceError, match=line) as caught:
            open_on_all(open_held, "held", Path("x"), settings, names)
        assert "\n" not in str(caught.value)
        assert str(caught.value).startswith("device cuda:1: ")
        assert closed == [1]


def test_devices_that_would_answer_in_different_numbers_are_refused(kit: ModuleType) -> None:
    numbers = iter((torch.bfloat16, torch.float32))

    def open_held(name: str, path: Path, settings: Settings) -> Any:
        pipeline = kit.make_pipeline(kit.HeldModel())
        pipeline.dtype = next(numbers)
        return kit.ServedModel.of(name, kit.make_config(), pipeline, kit.image_limits(settings), 8)

    with pytest.raises(DeviceError, match="cuda:0 in bfloat16, cuda:1 in float32: set --dtype"):
        open_on_all(open_held, "a", Path("x"), {0: Settings(), 1: Settings()}, {0: "cuda:0", 1: "cuda:1"})
