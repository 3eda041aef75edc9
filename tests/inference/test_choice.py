"""The choice of a backend: measured once, remembered under the same conditions, and never a reason not to start."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from milkweed.inference import backend, choice
from milkweed.inference.choice import FILE, chosen_by_search
from milkweed.inference.open import open_model
from milkweed.inference.options import InferenceOptions
from milkweed.inference.pipeline import Pipeline

from ..support.frontiers import record
from .backend_case import measured

RUNTIMES = ("onnxruntime float32", "openvino float32")


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InferenceOptions:
    measured(monkeypatch, (2.0, 1.0))
    return InferenceOptions(device="cpu", lanes=1, tuning_cache=str(tmp_path / "kept"))


@pytest.fixture
def warmed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The candidates that were made ready, in turn."""
    names: list[str] = []
    made = choice.choose_forward

    def noting(warm: Callable[[Any], Any], *arguments: Any, **named: Any) -> Any:
        return made(lambda candidate: names.append(str(candidate)) or warm(candidate), *arguments, **named)

    monkeypatch.setattr("milkweed.inference.open.choose_forward", noting)
    return names


def opened(bundle: Path, options: InferenceOptions, **named: Any) -> Pipeline:
    pipeline = open_model(bundle, options, **named).pipeline
    pipeline.close()
    return pipeline


def test_the_second_start_opens_what_was_the_fastest_alone(
    graph_alone: Path, options: InferenceOptions, warmed: list[str]
) -> None:
    first, second = opened(graph_alone, options).backend, opened(graph_alone, options).backend
    assert warmed == [*RUNTIMES, "openvino float32"]
    assert first.reason == (
        "the bundle's own graph; speedup over onnxruntime float32, batches of 1 and 8: openvino float32 2.00"
    )
    assert second.reason.replace(f", measured on {today(options)}", "") == first.reason != second.reason
    assert (second.name, second.speeds) == (first.name, first.speeds)


def today(options: InferenceOptions) -> str:
    (entry,) = json.loads((Path(options.tuning_cache) / FILE).read_text())["entries"].values()
    return str(entry["on"])


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize(
    "changed",
    [
        {"lanes": 2},
        {"max_batch_size": 3},
        {"micro_batch": 2},
        {"tuning": "force"},
        {"version": "2"},
        {"processor": "x"},
    ],
)
def test_other_conditions_are_measured_anew(
    changed: dict[str, Any],
    graph_alone: Path,
    options: InferenceOptions,
    warmed: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened(graph_alone, options)
    if changed.pop("version", None):
        monkeypatch.setattr(choice, "runtime_name", lambda name: f"{name} of another version")
    if changed.pop("processor", None):
        monkeypatch.setattr(choice, "processor_name", lambda: "another")
    opened(graph_alone, replace(options, **changed))
    assert warmed == [*RUNTIMES, *RUNTIMES]


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize(
    "damage",
    [
        {"chosen": "abacus float32"},
        {"speeds": {"onnxruntime float32": float("nan")}},
        {"speeds": 3},
        {"failed": {"torch float32": None}},
        {"on": "yesterday"},
    ],
)
def test_what_is_damaged_is_measured_again_with_a_line_in_the_log(
    damage: dict[str, Any],
    graph_alone: Path,
    options: InferenceOptions,
    warmed: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    opened(graph_alone, options)
    file = Path(options.tuning_cache) / FILE
    document = json.loads(file.read_text())
    for entry in document["entries"].values():
        entry.update(damage)
    file.write_text(json.dumps(document))
    opened(graph_alone, options)
    assert warmed == [*RUNTIMES, *RUNTIMES]
    assert [line.levelname for line in caplog.records if "measured again" in line.getMessage()] == ["WARNING"]
    opened(graph_alone, options)
    assert warmed[4:] == ["openvino float32"]


def test_what_answers_wrongly_by_now_is_measured_again(
    graph_alone: Path, options: InferenceOptions, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened(graph_alone, options)

    def refuse(*_: Any, **__: Any) -> None:
        raise backend.BackendError("no more")

    monkeypatch.setattr("milkweed.models.onnx.openvino_session.OpenVinoSession.__init__", refuse)
    assert opened(graph_alone, options).backend.name == "onnxruntime"
    assert "backend openvino float32, the fastest on" in caplog.text


def test_a_folder_that_cannot_be_written_costs_a_line(
    graph_alone: Path, options: InferenceOptions, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    assert opened(graph_alone, replace(options, tuning_cache=str(tmp_path / "file"))).backend.name == "openvino"
    assert "what was measured is lost with this process" in caplog.text


def test_a_child_that_tries_a_bundle_leaves_nothing(graph_alone: Path, options: InferenceOptions) -> None:
    opened(graph_alone, replace(options, remembers=False))
    assert not (Path(options.tuning_cache) / FILE).exists()


def test_one_shot_measures_nothing_and_takes_what_a_server_measured(
    graph_alone: Path, options: InferenceOptions, warmed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_medians", lambda *_: pytest.fail("one shot measures"))
    once = replace(options, one_shot=True)
    pipeline = opened(graph_alone, once)
    assert (pipeline.backend.name, pipeline.forward_stage.warm_seconds) == ("onnxruntime", {})
    assert not (Path(options.tuning_cache) / FILE).exists()
    measured(monkeypatch, (2.0, 1.0))
    opened(graph_alone, options)
    assert opened(graph_alone, once).backend.name == "openvino"
    assert warmed == ["onnxruntime float32", *RUNTIMES, "openvino float32"]


def test_one_shot_takes_a_searchs_choice_on_this_processor_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "processor_name", lambda: "AMD EPYC")
    assert chosen_by_search({"search": record()}) == "openvino bfloat16"
    assert chosen_by_search({}) == chosen_by_search({"search": 3}) == ""
    monkeypatch.setattr(choice, "processor_name", lambda: "AMD EPYC 9")
    assert chosen_by_search({"search": record()}) == ""
