"""The pipeline: answers are right, independent of neighbours to the bit, and errors stay in their place."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from milkweed.inference import forward as forward_module
from milkweed.inference.device import CPU, Device
from milkweed.inference.forward import Forward, LanePlan, plan_lanes
from milkweed.inference.pipeline import Pipeline
from milkweed.inference.results import InferenceError, TopClasses
from milkweed.inference.torch_forward import TorchForward
from milkweed.loaders.errors import InputError
from milkweed.models.architectures.registry import create_model
from milkweed.models.onnx.session import GraphSession
from milkweed.models.serving.prepare import prepare_for_inference

from ..support.server_parts import HeldModel, broken, encoded, make_pipeline


def small_vit() -> torch.nn.Module:
    torch.manual_seed(0)
    model = create_model(
        "deit_tiny_patch16_224", num_classes=50, embed_dim=48, depth=2, num_heads=3, img_size=32, patch_size=8
    )
    return prepare_for_inference(model)


def probabilities(lanes: Forward, pixels: torch.Tensor) -> torch.Tensor:
    return lanes.run(pixels).probabilities


def test_answer_is_the_models_softmax() -> None:
    model = HeldModel()
    image = encoded()
    [answer] = make_pipeline(model).classify([image], top_k=3)
    pixels = torch.from_numpy(make_pipeline(model).loader.load([image]).pixels)
    with torch.inference_mode():
        expected = model(pixels)[0].double().softmax(-1).sort(descending=True)
    assert answer.index == tuple(expected.indices[:3].tolist())
    assert answer.score == pytest.approx(expected.values[:3].tolist(), rel=1e-5)


def test_score_prints_as_the_float32_it_is() -> None:
    [answer] = make_pipeline(HeldModel()).classify([encoded()], top_k=7)
    for score in answer.score:
        assert len(repr(score)) <= 14  # at most 9 digits and an exponent, not 17
        assert float(str(np.float32(score))) == score
    assert sum(answer.score) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("plan", [LanePlan(1, 2, 1), LanePlan(8, 2, 1), LanePlan(8, 1, 2), LanePlan(3, 3, 1)])
def test_answer_does_not_depend_on_neighbours_to_the_bit(plan: LanePlan) -> None:
    pixels = torch.randn(19, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    lanes = TorchForward(small_vit(), plan, dtype="float32", size=32)
    alone = torch.cat([probabilities(lanes, pixels[i : i + 1]) for i in range(len(pixels))])
    for count in (2, 7, 8, 9, 19):
        assert torch.equal(probabilities(lanes, pixels[:count]), alone[:count])
        assert torch.equal(probabilities(lanes, pixels[-count:].flip(0)), alone[-count:].flip(0))
    lanes.close()


def test_lanes_and_threads_do_not_change_a_bit() -> None:
    pixels = torch.randn(9, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    answers, threads = [], torch.get_num_threads()
    for plan in (LanePlan(8, 1, 1), LanePlan(8, 2, 1), LanePlan(8, 1, 2)):
        lanes = TorchForward(small_vit(), plan, dtype="float32", size=32)
        answers.append(probabilities(lanes, pixels))
        lanes.close()
        assert torch.get_num_threads() == threads  # the caller's own computations go on as before
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])


def test_padding_is_told() -> None:
    lanes = TorchForward(small_vit(), LanePlan(8, 2, 1), dtype="float32", size=32)
    assert [lanes.run(torch.zeros(n, 3, 32, 32)).padding for n in (1, 8, 9)] == [7, 0, 7]
    lanes.close()


def test_failure_in_a_lane_is_raised_and_the_lanes_go_on() -> None:
    model = HeldModel()
    lanes = TorchForward(model, LanePlan(1, 2, 1), dtype="float32", size=32)
    model.failure = RuntimeError("lane")
    with pytest.raises(RuntimeError, match="lane"):
        lanes.run(torch.zeros(4, 3, 8, 8))
    model.failure = None
    assert lanes.run(torch.zeros(4, 3, 8, 8)).probabilities.shape == (4, 7)
    lanes.close()


def test_bad_images_keep_their_places_and_never_reach_the_forward() -> None:
    model = HeldModel()
    pipeline = make_pipeline(model)
    good = [encoded(seed=seed) for seed in range(3)]
    mixed = [broken(), good[0], b"", good[1], b"text, not an image", good[2]]
    outcomes = pipeline.classify(mixed)
    assert [getattr(o, "code", "ok") for o in outcomes] == [
        *("undecodable", "ok", "empty", "ok", "unsupported_format", "ok")
    ]
    assert model.sizes == [3]
    alone = [pipeline.classify([image])[0] for image in good]
    assert [outcomes[1], outcomes[3], outcomes[5]] == alone
    sizes = list(model.sizes)
    assert isinstance(pipeline.classify([b"no"])[0], InputError)
    assert model.sizes == sizes  # without a good image there is no forward


def test_loader_that_raises_costs_only_the_image_it_raises_for(caplog: pytest.LogCaptureFixture) -> None:
    pipeline: Pipeline = make_pipeline(HeldModel())
    good, poison = encoded(), encoded(seed=9)
    load = pipeline.loader.load

    def fragile(items: Sequence[bytes], infos: Any = None) -> Any:
        if poison in items:
            raise MemoryError("codec")
        return load(items, infos)

    alone = pipeline.classify([good])[0]
    pipeline.loader.load = fragile  # type: ignore[method-assign]
    outcomes = pipeline.classify([good, poison, b"", good])
    assert [outcomes[0], outcomes[3]] == [alone, alone]
    assert isinstance(outcomes[1], InferenceError)
    assert outcomes[1].code == "internal"
    assert isinstance(outcomes[2], InputError)
    assert "codec" in caplog.text


def test_numbers_that_are_none_are_an_error_not_json() -> None:
    model = HeldModel()
    with torch.no_grad():
        model.bias[0] = float("nan")
    [outcome] = make_pipeline(model).classify([encoded()])
    assert isinstance(outcome, InferenceError)
    assert outcome.code == "internal"


def test_each_image_gets_as_many_classes_as_it_asked_for() -> None:
    pipeline = make_pipeline(HeldModel())
    images = [encoded(seed=seed) for seed in range(4)]
    wanted = [1, 7, 3, 1]
    mixed = pipeline.run(images, [None] * 4, wanted).outcomes
    alone = [pipeline.classify([image], k)[0] for image, k in zip(images, wanted, strict=True)]
    assert mixed == alone
    assert [len(answer.index) for answer in mixed if isinstance(answer, TopClasses)] == wanted


@pytest.mark.parametrize("top_k", [0, 8, -1])
def test_top_k_outside_the_classes_is_refused(top_k: int) -> None:
    with pytest.raises(ValueError, match=rf"top_k is {top_k}: expected 1\.\.7"):
        make_pipeline(HeldModel()).classify([encoded()], top_k)


def test_stages_are_timed_without_gaps() -> None:
    result = make_pipeline(HeldModel()).run([encoded()], [None], [1])
    assert result.started < result.decoded < result.forwarded < result.finished
    assert set(result.cpu_seconds) == {"decode", "forward", "postprocess"}
    assert all(seconds > 0 for seconds in result.cpu_seconds.values())


@pytest.mark.parametrize(
    ("cores", "macs", "chosen", "expected"),
    [
        (2, 10**9, {}, LanePlan(1, 2, 1)),
        (2, 10**6, {}, LanePlan(8, 2, 1)),
        (2, 10**7, {}, LanePlan(4, 2, 1)),
        (16, 10**9, {}, LanePlan(1, 4, 4)),
        (1, 10**9, {}, LanePlan(1, 1, 1)),
        (8, 10**9, {"lanes": 2}, LanePlan(1, 2, 4)),
        (8, 10**9, {"threads": 8, "micro_batch": 4}, LanePlan(4, 1, 8)),
    ],
)
def test_plan_follows_model_and_cores(
    cores: int, macs: int, chosen: dict[str, int], expected: LanePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("milkweed.inference.forward.usable_cores", lambda: cores)
    assert plan_lanes(CPU, macs, **chosen) == replace(expected, most_threads=chosen.get("threads", 0))


def test_gpu_takes_the_whole_batch() -> None:
    assert plan_lanes(Device("cuda"), 1) == LanePlan(0, 1, 0)


class Counting(GraphSession):
    """Answers with the first pixels, and counts the images."""

    runtime = "Fake"
    images = 0

    def _compute(self, images: Any) -> Any:
        self.images += len(images)
        return [images[:, :, 0, 0]]


@pytest.mark.parametrize(("limit", "images"), [(0.0, 2), (1e9, 2 + 2 * 8)])
def test_a_start_waits_for_large_batches_no_longer_than_it_must(
    limit: float, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward_module, "WARM_UP_SECONDS", limit)
    session = Counting()
    forward = Forward(session, LanePlan(1, 2, 1), dtype="float32", size=4)
    forward.warm_up((8, 1))
    assert session.images == images
    assert set(forward.warm_seconds) == {1, 8}
    assert limit or forward.warm_seconds[8] == 4 * forward.warm_seconds[1]  # eight in two lanes
    forward.close()
