"""ONNX Runtime as what computes the forward: torch's answers, chosen by measurement, never silently another."""

import gc
import logging
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from milkweed.inference import backend
from milkweed.inference import open as opening
from milkweed.inference.backend import BackendChoice
from milkweed.inference.forward import Forward, LanePlan
from milkweed.inference.pipeline import Pipeline
from milkweed.models import export_bundle, import_checkpoint
from milkweed.models.onnx.session import OnnxSession
from milkweed.server.config.settings import Settings
from milkweed.server.repository.open import open_on_all
from milkweed.server.repository.served_model import ServedModel, open_model

from ..support.server_parts import HeldModel, broken, encoded, make_pipeline, served_model

CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def exported(colour_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("onnx") / "colours.onnx"
    export_bundle(colour_bundle, file)
    return file


@pytest.fixture
def at_once(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The export is there already; the process that makes it is tested by itself."""

    def given(bundle: Path, version: str, file: Path) -> int:
        file.write_bytes(exported.read_bytes())
        return 12345

    monkeypatch.setattr(backend, "_export", given)


def opened(bundle: Path, **settings: Any) -> ServedModel:
    return open_model("colours", bundle, Settings(device="cpu", **settings))


def pixels(count: int) -> Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.mark.usefixtures("at_once")
def test_onnx_runtime_answers_as_torch_does(colour_bundle: Path) -> None:
    images = [encoded(seed=seed) for seed in range(11)] + [broken()]
    answers = {}
    for engine in ("torch", "onnxruntime"):
        model = opened(colour_bundle, backend=engine)
        answers[engine] = model.pipeline.classify(images, top_k=3)
        said = model.describe()
        assert (said["backend"], said["backend_reason"]) == (engine, "as set")
        assert ("ONNX Runtime" in said["kernels"]) == (engine == "onnxruntime")
        assert (said["parameter_bytes"]["resident"] == 12345) == (engine == "onnxruntime")
        assert set(model.pipeline.forward_stage.warm_seconds) == {1, model.max_batch_size}
        model.pipeline.close()
    for ours, theirs in zip(answers["torch"][:-1], answers["onnxruntime"][:-1], strict=True):
        assert ours.index == theirs.index
        assert ours.score == pytest.approx(theirs.score, abs=1e-5)
    assert answers["onnxruntime"][-1].code == "undecodable"


@pytest.mark.parametrize("plan", [LanePlan(1, 2, 1), LanePlan(8, 2, 1), LanePlan(8, 1, 2), LanePlan(3, 3, 1)])
def test_answer_does_not_depend_on_neighbours_lanes_or_threads_to_the_bit(plan: LanePlan, exported: Path) -> None:
    alone = OnnxSession(exported, batch=plan.micro_batch)
    lanes = Forward(
        OnnxSession(exported, threads=3, batch=plan.micro_batch), plan, device=CPU, dtype=torch.float32, size=16
    )
    images = pixels(19)
    padded = [torch.cat([image[None], torch.zeros(plan.micro_batch - 1, 3, 16, 16)]) for image in images]
    expected = torch.cat([alone(batch)[:1].softmax(-1) for batch in padded])
    for count in (1, 2, 8, 9, 19):
        assert torch.equal(lanes.run(images[:count]).probabilities, expected[:count])
        assert torch.equal(lanes.run(images[-count:].flip(0)).probabilities, expected[-count:].flip(0))
    lanes.close()


@pytest.mark.usefixtures("at_once")
def test_only_the_engine_that_was_chosen_stays(colour_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load, kept = opening.load_bundle, []

    def noted(path: Path) -> Any:
        model, config = load(path)
        kept.append(weakref.ref(model))
        return model, config

    made = OnnxSession.__init__

    def made_and_noted(self: OnnxSession, *rest: Any, **options: Any) -> None:
        made(self, *rest, **options)
        kept.append(weakref.ref(self))

    monkeypatch.setattr(opening, "load_bundle", noted)
    monkeypatch.setattr(OnnxSession, "__init__", made_and_noted)
    for ratio, alive in ((1.3, [False, True]), (0.9, [True, False])):
        monkeypatch.setattr(backend, "_ratio", lambda *_, ratio=ratio: ratio)
        kept.clear()
        model = opened(colour_bundle, backend="auto")
        gc.collect()
        assert [each() is not None for each in kept] == alive
        model.pipeline.close()


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("ratios", "choice"),
    [
        (
            (1.2, 1.3),
            BackendChoice("onnxruntime", "ONNX Runtime is 1.25 times as fast as torch, batches of 1 and 8", 1.249),
        ),
        ((1.0, 1.06), BackendChoice("torch", "ONNX Runtime is 1.03 times as fast as torch, batches of 1 and 8", 1.03)),
        ((0.5, 1.5), BackendChoice("torch", "ONNX Runtime is 0.87 times as fast as torch, batches of 1 and 8", 0.866)),
    ],
)
def test_auto_takes_the_faster_one_and_says_so(
    ratios: tuple[float, float],
    choice: BackendChoice,
    colour_bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    measured = dict(zip((1, 8), ratios, strict=True))
    monkeypatch.setattr(backend, "_ratio", lambda _, __, size: measured[size])
    with caplog.at_level(logging.INFO, "milkweed.backend"):
        model = opened(colour_bundle, backend="auto", lanes=1)
    assert model.pipeline.backend == choice
    assert model.describe()["backend_reason"] == choice.reason
    assert f"backend {choice.name}: {choice.reason}" in caplog.text
    model.pipeline.close()


@pytest.mark.usefixtures("at_once")
def test_auto_measures_both(colour_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "MEASURE_SECONDS", 0.0)
    model = opened(colour_bundle, backend="auto")
    choice = model.pipeline.backend
    assert choice.ratio is not None
    assert choice.name == ("onnxruntime" if choice.ratio >= backend.MIN_SPEEDUP else "torch")
    assert choice.reason.startswith(f"ONNX Runtime is {choice.ratio:.2f} times as fast as torch, batches of 1 and")
    model.pipeline.close()


def test_what_is_measured_is_the_time_of_whole_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch is held up by a clock of our own: twice as long, then."""
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

    ours, theirs = Slow(2.0), Slow(1.0)
    plan = LanePlan(1, 1, 1)
    torchs, onnxs = (Forward(each, plan, device=CPU, dtype=torch.float32, size=8) for each in (ours, theirs))
    torchs.warm_up((1, 4))
    ours.sizes.clear()
    choice = backend._faster(torchs, onnxs)
    assert choice == BackendChoice(
        "onnxruntime", "ONNX Runtime is 2.00 times as fast as torch, batches of 1 and 4", 2.0
    )
    rounds = 1 + backend.MIN_ROUNDS
    assert len(ours.sizes) == len(theirs.sizes) == rounds * (1 + 4)
    torchs.close()
    onnxs.close()


def test_several_devices_compute_with_one_engine() -> None:
    wanted = []

    def open_held(name: str, path: Path, settings: Settings) -> ServedModel:
        wanted.append(settings.backend)
        pipeline = make_pipeline(HeldModel())
        pipeline.backend = BackendChoice("onnxruntime", "1.2 times as fast", 1.2)
        return served_model(name, pipeline, settings)

    settings = dict.fromkeys((0, 1, 2), Settings(backend="auto"))
    open_on_all(open_held, "held", Path("x"), settings, {0: "cpu:0", 1: "cpu:1", 2: "cpu:2"})
    assert wanted == ["auto", "onnxruntime", "onnxruntime"]


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
    session, plan = OnnxSession(tmp_path / "deit.onnx", threads=3, batch=1), LanePlan(1, 2, 2)
    forward = Forward(session, plan, device=CPU, dtype=torch.float32, size=224)
    other = Pipeline(pipeline.loader, forward, num_classes=1000)
    found = other.classify(photos)
    assert found[3:5] == other.classify(photos[3:5])  # to the bit, in other company
    assert [each.index for each in found] == [each.index for each in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.score == pytest.approx(theirs.score, abs=1e-5)
    pipeline.close()
    forward.close()
