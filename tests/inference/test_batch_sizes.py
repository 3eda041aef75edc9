"""Forwards of several sizes: the same bits alone and in any company, or the micro-batch alone; how batches are cut."""

import itertools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from milkweed.inference import batch_sizes
from milkweed.inference.backend import Candidate
from milkweed.inference.batch_sizes import other_size, with_equal_size
from milkweed.inference.forward import Forward, LanePlan
from milkweed.inference.graph import Graph, graph_forward
from milkweed.models import export_bundle
from milkweed.models.bundle.golden import softmax
from milkweed.models.errors import ExportError
from milkweed.models.onnx.session import GraphSession
from milkweed.server.config.settings import Settings
from milkweed.server.repository.served_model import open_model

from .backend_case import pixels

SIZE = 16


class Colours(GraphSession):
    """Answers with the colours of an image's first pixel, and where it is told to, wrongly.

    Args:
        wrong: by place in the batch, what is added to its answer.
        beside: what is added to an answer for the colours of the image in front of it.
    """

    runtime = "Fake"

    def __init__(self, batch: int, wrong: Mapping[int, float] | None = None, beside: float = 0.0) -> None:
        self.batch, self.wrong, self.beside, self.calls = batch, wrong or {}, beside, 0

    def _compute(self, images: Any) -> Any:
        assert len(images) == self.batch
        self.calls += 1
        colours = images[:, :, 0, 0]
        found = colours + np.float32(self.beside) * np.roll(colours, 1, 0)
        for place, error in self.wrong.items():
            found[place] += np.float32(error)
        return [found]


def planned(micro_batch: int, **planted: Any) -> tuple[dict[int, Colours], Forward]:
    """A forward whose other sizes are wrong as told, and all sessions that were made."""
    made = {micro_batch: Colours(micro_batch)}

    def make(count: int) -> Colours:
        made[count] = Colours(count, **planted)
        return made[count]

    session, plan = with_equal_size(made[micro_batch], make, LanePlan(micro_batch, 2, 1), SIZE)
    return made, Forward(session, plan, dtype="float32", size=SIZE)


@pytest.mark.parametrize(("micro_batch", "size"), [(1, 4), (2, 1), (4, 1), (8, 1)])
def test_the_size_beside_the_micro_batch(micro_batch: int, size: int) -> None:
    assert other_size(micro_batch) == size


def test_equal_sizes_are_used_and_told() -> None:
    made, forward = planned(1)
    assert str(forward.plan) == "2 lanes x 1 threads x micro-batch 1 or 4"
    assert (made[1].calls, made[4].calls) == (5, 5)
    forward.plan = LanePlan(1, 2, 1, {1: 1.0, 4: 3.5})
    found = forward.run(pixels(9))
    assert (made[1].calls, made[4].calls, found.padding) == (6, 7, 0)  # two of four, and one
    assert np.array_equal(found.probabilities, softmax(pixels(9).numpy()[:, :, 0, 0]))
    forward.close()


@pytest.mark.parametrize(
    "planted", [{"wrong": {3: 1e-6}}, {"wrong": {0: 1e-6}}, {"beside": 1e-6}, {"wrong": {2: float("nan")}}]
)
def test_a_size_with_other_bits_is_not_used_and_that_is_said_once(
    planted: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    made, forward = planned(1, **planted)
    assert [each.message for each in caplog.records] == ["a forward of 4 images gives other bits than one of 1"]
    assert str(forward.plan) == "2 lanes x 1 threads x micro-batch 1 (not 4: other bits)"
    tried = made[4].calls
    assert np.array_equal(forward.run(pixels(9)).probabilities, softmax(pixels(9).numpy()[:, :, 0, 0]))
    assert (made[1].calls, made[4].calls) == (5 + 9, tried)
    assert len(caplog.records) == 1
    forward.close()


def test_a_micro_batch_whose_places_differ_is_not_taken_for_another_size() -> None:
    _, plan = with_equal_size(Colours(4, {1: 1e-6}), Colours, LanePlan(4, 1, 1), SIZE)
    assert (plan.refused, plan.cut(5)) == (1, (4, 4))


def test_a_size_that_cannot_be_compiled_is_done_without(caplog: pytest.LogCaptureFixture) -> None:
    def make(count: int) -> Colours:
        raise ExportError("shapes are fixed")

    _, plan = with_equal_size(Colours(1), make, LanePlan(1, 2, 1), SIZE)
    assert plan.cut(4) == (1, 1, 1, 1)
    assert [each.message for each in caplog.records] == ["no forward of 4 images: shapes are fixed"]


def test_proving_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_sizes, "MAX_SECONDS", 0.0)
    _, plan = with_equal_size(Colours(1), lambda _: pytest.fail("tried"), LanePlan(1, 2, 1), SIZE)
    assert str(plan) == "2 lanes x 1 threads x micro-batch 1"


@pytest.mark.parametrize("lanes", [1, 2, 3, 4])
@pytest.mark.parametrize("seconds", [{1: 1.0, 4: 3.0}, {1: 1.0, 4: 4.5}, {1: 1.0, 4: 1.5}, {1: 1.0, 8: 5.0}, {4: 1.0}])
def test_a_cut_covers_the_batch_and_ends_as_early_as_can_be(lanes: int, seconds: dict[int, float]) -> None:
    plan = LanePlan(min(seconds), lanes, 1, seconds)
    for count in range(1, 34):
        sizes = plan.cut(count)
        assert list(sizes) == sorted(sizes, reverse=True)
        assert set(sizes) <= set(seconds)
        assert sum(sizes[:-1]) < count <= sum(sizes)  # no forward is of zeros alone
        if count <= 9:
            assert ends(sizes, seconds, lanes) == pytest.approx(least(count, seconds, lanes))


def ends(sizes: tuple[int, ...], seconds: Mapping[int, float], lanes: int) -> float:
    busy = [0.0] * lanes
    for size in sizes:
        first = busy.index(min(busy))
        busy[first] += seconds[size]
    return max(busy)


def least(count: int, seconds: Mapping[int, float], lanes: int) -> float:
    """The earliest end of all multisets of forwards that hold so many images, largest first."""
    found = []
    for length in range(1, count + 1):
        for sizes in itertools.combinations_with_replacement(sorted(seconds, reverse=True), length):
            if sum(sizes) >= count:
                found.append(ends(sizes, seconds, lanes))
    return min(found)


@pytest.mark.parametrize(("count", "sizes"), [
    (1, (1,)), (2, (1, 1)), (3, (1, 1, 1)), (4, (1, 1, 1, 1)), (5, (4, 1)), (8, (4, 4)), (9, (4, 4, 1)), (32, (4,) * 8),
])  # fmt: skip
def test_cuts_of_two_lanes(count: int, sizes: tuple[int, ...]) -> None:
    plan = LanePlan(1, 2, 1, {1: 11.7, 4: 42.4})
    if count == 5:
        assert ends(sizes, plan.seconds, 2) > ends(plan.cut(5), plan.seconds, 2)  # three of one end earlier than four
    else:
        assert plan.cut(count) == sizes


@pytest.fixture(scope="module")
def exported(colour_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("sizes") / "colours.onnx"
    export_bundle(colour_bundle, file)
    return file


@pytest.mark.parametrize("micro_batch", [1, 4])
@pytest.mark.slow_beyond(1)
def test_openvino_gives_an_image_the_same_bits_in_every_size_and_place(micro_batch: int, exported: Path) -> None:
    graph, plan = Graph(exported, 1), LanePlan(micro_batch, 2, 1)
    made = [graph_forward(graph, Candidate("openvino"), plan, SIZE, fixed=fixed) for fixed in (True, False)]
    single, several = made
    assert (single.plan.seconds, set(several.plan.seconds)) == ({}, {1, 4})
    images = pixels(19).numpy()
    alone = np.concatenate([single.run(each[None]).probabilities for each in images])
    for seconds in ({1: 1.0, 4: 2.0}, {1: 1.0, 4: 9.0}):
        several.plan = LanePlan(micro_batch, 2, 1, seconds)
        for count in (1, 3, 4, 8, 19):
            for shift in range(4):
                found = several.run(np.roll(images, shift, 0)[:count]).probabilities
                assert np.array_equal(found, np.roll(alone, shift, 0)[:count])
    for forward in made:
        forward.close()


@pytest.mark.parametrize(("chosen", "sizes"), [(0, "1 or 8"), (2, "2")])
def test_a_micro_batch_that_is_set_is_the_only_size(chosen: int, sizes: str, graph_alone: Path) -> None:
    model = open_model("colours", graph_alone, Settings(device="cpu", backend="openvino", micro_batch=chosen))
    assert model.describe()["lanes"].endswith(f"micro-batch {sizes}")
    model.pipeline.close()


def test_onnx_runtime_keeps_the_micro_batch(exported: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        forward = graph_forward(Graph(exported, 1), Candidate("onnxruntime"), LanePlan(1, 2, 1), SIZE)
    assert forward.plan == LanePlan(1, 2, 1)
    assert not caplog.records
    forward.close()
