"""The backends of a forward: torch's answers, chosen by measurement, never silently another."""

import gc
import logging
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from torch import Tensor, nn

from milkweed.inference import backend
from milkweed.inference.backend import RUNTIMES, Backend, BackendChoice, Candidate
from milkweed.inference.batch_sizes import SizedSession
from milkweed.inference.forward import Forward, LanePlan
from milkweed.inference.pipeline import Pipeline
from milkweed.inference.torch_forward import TorchForward
from milkweed.models import export_bundle, import_checkpoint
from milkweed.models.bundle import bundle as bundles
from milkweed.models.bundle.golden import softmax
from milkweed.models.onnx.openvino_session import OpenVinoSession
from milkweed.models.onnx.session import GraphSession, OnnxSession
from milkweed.server.config.settings import Settings
from milkweed.server.repository.open import open_on_all
from milkweed.server.repository.served_model import ServedModel

from ..support.server_parts import HeldModel, broken, encoded, make_pipeline, served_model
from .backend_case import measured, opened, pixels


@pytest.mark.usefixtures("at_once")
def test_every_backend_answers_as_torch_does(colour_bundle: Path) -> None:
    images = [encoded(seed=seed) for seed in range(11)] + [broken()]
    expected = None
    for name in [each for each in get_args(Backend) if each != "milkweed"]:  # which computes nothing in float32
        model = opened(colour_bundle, backend=name)
        answers = model.pipeline.classify(images, top_k=3)
        said = model.describe()
        assert (said["backend"], said["backend_reason"], said["dtype"]) == (name, "as set", "float32")
        assert (RUNTIMES[name] in said["kernels"]) == (name != "torch")
        assert (said["parameter_bytes"]["resident"] == 12345) == (name != "torch")
        assert set(model.pipeline.forward_stage.warm_seconds) == {1, model.max_batch_size}
        model.pipeline.close()
        assert answers[-1].code == "undecodable"
        expected = expected or answers
        for ours, theirs in zip(expected[:-1], answers[:-1], strict=True):
            assert ours.index == theirs.index
            assert ours.score == pytest.approx(theirs.score, abs=1e-5)


SESSIONS = {
    "onnxruntime": lambda file, plan: OnnxSession(
        file, threads=plan.lanes * (plan.threads - 1) + 1, batch=plan.micro_batch
    ),
    "openvino": lambda file, plan: OpenVinoSession(
        file, streams=plan.lanes, threads=plan.threads, batch=plan.micro_batch
    ),
    "openvino bfloat16": lambda file, plan: OpenVinoSession(
        file, streams=plan.lanes, threads=plan.threads, batch=plan.micro_batch, dtype="bfloat16"
    ),
}


@pytest.mark.parametrize("session", SESSIONS.values(), ids=SESSIONS)
@pytest.mark.parametrize("plan", [LanePlan(1, 2, 1), LanePlan(8, 2, 1), LanePlan(8, 1, 2), LanePlan(3, 3, 1)])
@pytest.mark.slow_beyond(3)
def test_answer_does_not_depend_on_neighbours_lanes_or_threads_to_the_bit(
    session: Callable[[Path, LanePlan], GraphSession], plan: LanePlan, exported: Path
) -> None:
    alone = session(exported, LanePlan(plan.micro_batch, 1, 1))
    lanes = Forward(session(exported, plan), plan, dtype="float32", size=16)
    images = pixels(19).numpy()
    padded = [np.concatenate([image[None], np.zeros((plan.micro_batch - 1, 3, 16, 16), "f4")]) for image in images]
    expected = np.concatenate([softmax(alone(batch)[:1]) for batch in padded])
    for count in (1, 2, 8, 9, 19):
        assert np.array_equal(lanes.run(images[:count]).probabilities, expected[:count])
        assert np.array_equal(lanes.run(images[-count:][::-1]).probabilities, expected[-count:][::-1])
    assert lanes.run(images).cpu_seconds > 0
    lanes.close()


@pytest.mark.usefixtures("at_once")
def test_only_the_forward_that_was_chosen_stays(colour_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load, kept = bundles.load_bundle, []

    def noted(path: Path, config: Any) -> Any:
        model, config = load(path, config)
        kept.append(weakref.ref(model))
        return model, config

    def noting(kind: type[GraphSession]) -> Callable[..., None]:
        make = kind.__init__

        def made_and_noted(self: GraphSession, *given: Any, **options: Any) -> None:
            make(self, *given, **options)
            kept.append(weakref.ref(self))

        return made_and_noted

    monkeypatch.setattr(bundles, "load_bundle", noted)
    for kind in (OnnxSession, OpenVinoSession, SizedSession):
        monkeypatch.setattr(kind, "__init__", noting(kind))
    # OpenVINO has a session for each batch size, and one that joins them.
    for fastest, alive in enumerate([[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 1, 1]]):
        measured(monkeypatch, [1.0 if place == fastest else 2.0 for place in range(3)])
        kept.clear()
        model = opened(colour_bundle, backend="auto")
        gc.collect()
        assert [each() is not None for each in kept] == alive
        model.pipeline.close()


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("seconds", "name", "reason"),
    [
        (((1.2, 1.0, 1.5), (1.3, 1.0, 1.5)), "onnxruntime", "onnxruntime float32 1.25, openvino float32 0.83"),
        (((1.0, 1.0, 1.0), (1.06, 1.0, 1.0)), "torch", "onnxruntime float32 1.03, openvino float32 1.03"),
        (((0.5, 1.0, 0.2), (1.5, 1.0, 1.4)), "openvino", "openvino float32 1.64, onnxruntime float32 0.87"),
        (((3.0, 1.02, 1.0), (3.0, 1.02, 1.0)), "onnxruntime", "openvino float32 3.00, onnxruntime float32 2.94"),
    ],
)
def test_auto_takes_the_fastest_one_and_says_so(
    seconds: Any,
    name: str,
    reason: str,
    colour_bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    measured(monkeypatch, *seconds)
    with caplog.at_level(logging.INFO, "milkweed.backend"):
        model = opened(colour_bundle, backend="auto", lanes=1)
    choice = model.pipeline.backend
    assert (choice.name, choice.reason) == (name, f"speedup over torch float32, batches of 1 and 8: {reason}")
    assert choice.speeds.keys() == {"torch float32", "onnxruntime float32", "openvino float32"}
    assert model.describe()["backend_reason"] == choice.reason
    assert f"backend {choice.name} float32: {choice.reason}" in caplog.text
    model.pipeline.close()


def test_what_is_measured_is_the_time_of_whole_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The forwards are held up by a clock of our own."""
    monkeypatch.setattr(backend, "MEASURE_SECONDS", 0.0)
    now = [0.0]
    monkeypatch.setattr(backend.time, "perf_counter", lambda: now[0])

    class Slow(nn.Module):
        def __init__(self, seconds: float) -> None:
            super().__init__()
            self.seconds, self.sizes = seconds, []

        def forward(self, images: Tensor) -> Tensor:
            now[0] += self.seconds
            self.sizes.append(len(images))
            return images.mean((2, 3))

    models = Slow(2.0), Slow(1.0)
    forwards = [TorchForward(each, LanePlan(1, 1, 1), dtype="float32", size=8) for each in models]
    candidates = Candidate("torch"), Candidate("openvino")
    chosen, speeds = backend.fastest(dict(zip(candidates, forwards, strict=True)), (1, 4))
    choice = backend.explained(chosen, speeds, (1, 4), {}, "")
    assert (chosen, choice.name) == (candidates[1], "openvino")
    assert choice.speeds == {"torch float32": 1.0, "openvino float32": 2.0}
    assert choice.reason == "speedup over torch float32, batches of 1 and 4: openvino float32 2.00"
    assert len(models[0].sizes) == len(models[1].sizes) == backend.MIN_ROUNDS * (1 + 4)
    for forward in forwards:
        forward.close()


def test_several_devices_compute_with_one_backend_and_dtype() -> None:
    wanted = []

    def open_held(name: str, path: Path, settings: Settings) -> ServedModel:
        wanted.append((settings.backend, settings.dtype))
        pipeline = make_pipeline(HeldModel())
        pipeline.backend = BackendChoice("onnxruntime", "speedup 1.2")
        pipeline.dtype = "bfloat16"
        return served_model(name, pipeline, settings)

    settings = dict.fromkeys((0, 1, 2), Settings(backend="auto"))
    open_on_all(open_held, "held", Path("x"), settings, ("cpu:0", "cpu:1", "cpu:2"))
    assert wanted == [("auto", "auto"), ("onnxruntime", "bfloat16"), ("onnxruntime", "bfloat16")]


@pytest.mark.slow
def test_photographs_have_the_class_that_torch_gives_them(shared: Path, tmp_path: Path) -> None:
    """DeiT-Tiny with its real weights; docs/export.md has the whole sample."""
    import_checkpoint(
        shared / "weights" / "deit_tiny_patch16_224.safetensors", "deit_tiny_patch16_224", tmp_path / "deit"
    )
    export_bundle(tmp_path / "deit", tmp_path / "deit.onnx")
    photos = [path.read_bytes() for path in sorted((shared / "data" / "imagenet-sample").glob("*.JPEG"))[::40]]
    assert len(photos) == 13
    pipeline = opened(tmp_path / "deit").pipeline
    expected = pipeline.classify(photos)
    plan, file = LanePlan(1, 2, 2), tmp_path / "deit.onnx"
    for name in ("onnxruntime", "openvino"):
        forward = Forward(SESSIONS[name](file, plan), plan, dtype="float32", size=224)
        other = Pipeline(pipeline.loader, forward, num_classes=1000)
        found = other.classify(photos)
        assert found[3:5] == other.classify(photos[3:5])  # to the bit, in other company
        assert [each.index for each in found] == [each.index for each in expected], name
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.score == pytest.approx(theirs.score, abs=1e-5)
        forward.close()
    pipeline.close()
