"""A model is opened on every device or on none."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from milkweed.inference.device import DeviceError
from milkweed.models.bundle.program_record import OPERATORS
from milkweed.models.errors import BundleError
from milkweed.models.programs.session import kernels_refusal
from milkweed.server.config.settings import Settings
from milkweed.server.repository.open import open_on_all, opening

from ...support.server_parts import HeldModel, ServedModel, make_pipeline, served_model
from ...support.waiting import HANG_SECONDS

UNEXPECTED = "device cuda:1: model held cannot be opened: an unexpected error, the log has it"


def held(settings: Settings) -> Any:
    return served_model("held", make_pipeline(HeldModel()), settings)


@pytest.mark.parametrize(
    ("failure", "line"),
    [
        (BundleError("bundle x: golden image 0, class 3"), "device cuda:1: bundle x: golden image 0, class 3"),
        (ValueError("size is 0"), "device cuda:1: size is 0"),
        (RuntimeError("CUDA out of memory\nmore"), UNEXPECTED),
        (OSError(28, "No space left on device", "/secret"), UNEXPECTED),
        (json.JSONDecodeError("secret", "", 0), UNEXPECTED),
    ],
)
def test_a_device_that_cannot_load_a_model_is_named_and_nothing_stays_open(
    caplog: pytest.LogCaptureFixture, failure: Exception, line: str
) -> None:
    opened: list[Any] = []
    closed: list[int] = []

    def open_held(name: str, path: Path, settings: Settings) -> Any:
        if opened:
            raise failure
        model = held(settings)
        model.pipeline.close = lambda: closed.append(1)
        opened.append(model)
        return model

    with pytest.raises(DeviceError) as caught:
        open_on_all(open_held, "held", Path("x"), {0: Settings(), 1: Settings()}, ("cuda:0", "cuda:1"))
    assert str(caught.value) == line
    assert closed == [1]
    logged = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert logged == ([failure] if line == UNEXPECTED else [])  # with a traceback, where the line does not say it


def test_without_an_engine_nothing_is_opened() -> None:
    with pytest.raises(DeviceError, match=r"^model held cannot be opened: every engine has ended$"):
        open_on_all(lambda *_: None, "held", Path("x"), {}, ())  # type: ignore[arg-type, return-value]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders of bundles for our CPU kernels, on a machine with two cores."""
    monkeypatch.setattr("milkweed.server.repository.open.usable_cores", lambda: 2)
    folders = [tmp_path / name for name in "abcd"]
    for folder in folders:
        folder.mkdir()
        (folder / OPERATORS).touch()
    return folders


@pytest.mark.skipif(kernels_refusal() is not None, reason="our CPU kernels cannot be used here")
def test_the_first_models_are_opened_two_at_a_time_in_their_order(programs: list[Path]) -> None:
    both = threading.Barrier(2, timeout=HANG_SECONDS)

    def open_one(path: Path) -> str:
        both.wait()  # breaks, and fails, where one thread opens them all
        return path.name

    with opening(programs, Settings(device="cpu")) as calls:
        assert list(calls(open_one, programs)) == ["a", "b", "c", "d"]


@pytest.mark.skipif(kernels_refusal() is not None, reason="our CPU kernels cannot be used here")
def test_where_one_of_the_first_models_fails_the_next_are_left(programs: list[Path]) -> None:
    begun: list[str] = []
    failed = threading.Event()

    def open_one(path: Path) -> None:
        begun.append(path.name)
        if path.name == "a":
            failed.set()
            raise BundleError("a is broken")
        failed.wait(HANG_SECONDS)
        threading.Event().wait(0.2)  # until the rest is cancelled

    many = programs * 20
    with pytest.raises(BundleError, match=r"^a is broken$"), opening(many, Settings(device="cpu")) as calls:
        list(calls(open_one, many))
    assert len(begun) < len(many)


@pytest.mark.parametrize(
    ("options", "other"), [({"backend": "torch"}, False), ({"dtype": "float32"}, False), ({}, True)]
)
def test_what_others_would_disturb_is_opened_alone(programs: list[Path], options: dict[str, Any], other: bool) -> None:
    if other:
        (programs[2] / OPERATORS).unlink()  # another backend computes it
    here = threading.get_ident()
    with opening(programs, Settings(device="cpu", **options)) as calls:
        assert list(calls(lambda _: threading.get_ident(), programs)) == [here] * 4


def test_devices_that_would_answer_in_different_numbers_are_refused() -> None:
    numbers = iter(("bfloat16", "float32"))

    def open_held(name: str, path: Path, settings: Settings) -> Any:
        pipeline = make_pipeline(HeldModel())
        pipeline.dtype = next(numbers)
        return served_model(name, pipeline, settings)

    with pytest.raises(DeviceError, match="cuda:0 in bfloat16, cuda:1 in float32: set --dtype"):
        open_on_all(open_held, "a", Path("x"), {0: Settings(), 1: Settings()}, ("cuda:0", "cuda:1"))


def test_a_model_that_cannot_be_described_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []

    def open_held(name: str, path: Path, settings: Settings) -> Any:
        model = held(settings)
        model.pipeline.close = lambda: closed.append(1)
        return model

    assert open_on_all(open_held, "held", Path("x"), {0: Settings()}, ("cpu",)).name == "held"
    monkeypatch.setattr(ServedModel, "describe", lambda model: {"load_seconds": float("inf")})
    with pytest.raises(ValueError, match="JSON"):
        open_on_all(open_held, "held", Path("x"), {0: Settings()}, ("cpu",))
    assert closed == [1]
