"""A search from a small model and pictures to a bundle: its record is true, and a killed one goes on."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from milkweed.compress import apply, measure, quantize, search
from milkweed.compress.data import Baseline
from milkweed.compress.distill.distil import FEWEST_STEPS
from milkweed.compress.job import CompressJob
from milkweed.compress.recipe import DistillationConfig
from milkweed.compress.search import SearchResult
from milkweed.compress.selection import MeasuredCandidate, Target
from milkweed.compress.write import compress
from milkweed.inference import backend, device
from milkweed.inference.open import open_model
from milkweed.inference.options import InferenceOptions
from milkweed.models import BundleConfig, load_bundle
from milkweed.models.bundle.graph import load_graph
from milkweed.models.onnx.session import OnnxSession
from milkweed.models.progress import SILENT, Progress
from milkweed.models.report import Frontier, read_report

from .conftest import COUNT, divergence, held_out_images

pytest.importorskip("nncf", reason="the extra `quantize` is not installed")
pytestmark = pytest.mark.usefixtures("quick")


SMALL = 95_000
"""Bytes of a bundle whose weights are in int8, at most."""


class Killed(BaseException):
    """Whatever ends a process; pytest itself listens to KeyboardInterrupt."""


@dataclass(frozen=True)
class Searched:
    """A search with all kinds of recipe that was killed where each kind of step was first told."""

    out: Path
    found: SearchResult
    config: BundleConfig
    kills: Sequence[str]
    notes: Sequence[str]
    quantised: Sequence[str]


def nearest_of_the_small(models: Sequence[MeasuredCandidate], *_: Any) -> MeasuredCandidate:
    return min((model for model in models if model.bytes <= SMALL), key=lambda model: model.quality.kl.value)


@pytest.fixture(scope="module")
def searched(vit: Path, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Searched:
    out = tmp_path_factory.mktemp("searched") / "out"
    job = CompressJob(source=vit, out=out, images=photos, target=Target(drop=1e6), minutes=0)
    kills, notes, quantised = list[str](), list[str](), list[str]()
    quantise = apply.quantized_graph

    def step(name: str, *_: int) -> None:
        if (kind := name.split()[0]) not in kills:
            kills.append(kind)
            raise Killed

    def counted(source: Path, *arguments: Any) -> Any:
        quantised.append(source.name)
        return quantise(source, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apply, "quantized_graph", counted)
        patch.setattr(search, "pick", nearest_of_the_small)  # times are noise here
        patch.setattr(quantize, "fastest", nearest_of_the_small)
        while True:
            try:
                found, config = compress(job, Progress(step=step, note=notes.append))
            except Killed:
                assert not out.exists()
                continue
            return Searched(out, found, config, kills, notes, quantised)


def test_all_images_but_those_that_judge_may_train(job: CompressJob) -> None:
    baseline = Baseline(replace(job, max_images=40), SILENT)
    files, judges = (
        {sample.path.name for sample in baseline.training},
        {f"{at * COUNT // 40:02d}.png" for at in range(1, 40, 2)},
    )
    assert (len(baseline.samples), len(baseline.held_out)) == (20, 20)
    assert files == {f"{number:02d}.png" for number in range(COUNT)} - judges


@pytest.mark.slow
def test_the_bundle_is_what_the_record_says(searched: Searched, vit: Path, photos: Path) -> None:
    out, config = searched.out, searched.config
    graph, read = load_graph(out)
    assert read == config
    assert config.graph_only
    assert config.bytes_on_disk < 110_000  # the graph, and a few kB of labels and config
    record = config.metrics["search"]
    (chosen,) = (row for row in record["models"] if row["chosen"])
    assert "int8" in chosen["name"]
    assert chosen["quality"]["images"] == COUNT // 2
    images = held_out_images(photos)
    dense, _ = load_bundle(vit)
    with torch.inference_mode():
        again = divergence(dense(images), OnnxSession(graph.data)(images))
    assert again == pytest.approx(chosen["quality"]["kl"]["value"], rel=0.25)  # another runtime rounds otherwise
    names = {row["name"] for row in record["models"]}
    assert {"dense", "class token last", "class token last, int8"} < names
    assert any("merge 40 %" in name for name in names)
    measured = searched.found.models[searched.found.chosen]
    reserved = measured.bytes - chosen["bytes"]  # for a record whose length was not known yet
    small = [row for row in record["models"] if row["bytes"] + reserved <= SMALL]
    assert chosen["quality"]["kl"]["value"] == min(row["quality"]["kl"]["value"] for row in small)
    assert config.tokens == searched.found.chosen.recipe.tokens
    report = read_report(out)
    assert report is not None
    assert report.version == config.version
    assert report.frontier == Frontier.from_dict(record)
    assert [(use.role, use.folder, use.images) for use in report.data] == [
        ("calibration", photos.name, COUNT // 2),
        ("held out", photos.name, COUNT // 2),
    ]
    assert report.after is not None
    assert report.after.kl == chosen["quality"]["kl"]["value"]
    assert report.totals_after is not None
    assert (report.totals_after.bytes, report.totals_after.latency_ms) == (chosen["bytes"], chosen["ms"]["1"])
    assert report.warnings[0].startswith("the held-out images chose among the models")
    assert (out / "report.html").read_text().count("<svg") == 2


@pytest.mark.slow
def test_a_search_killed_at_any_step_goes_on(searched: Searched) -> None:
    assert {"reading", "exporting", "timing", "quantising", "token"} == set(searched.kills)
    assert any("going on with what was measured" in note for note in searched.notes)
    assert len(searched.quantised) == len(set(searched.quantised)) == 2  # the exact model and a schedule, each once
    assert any(re.fullmatch(r"search: \d of \d models(, about \d+ min left)?", note) for note in searched.notes)


@pytest.mark.slow
def test_a_model_that_merges_is_trained_and_measured_again(job: CompressJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "DistillationConfig", partial(DistillationConfig, steps=2, lr=1e-3))
    monkeypatch.setattr(search, "pareto_frontier", lambda models, batch: models)  # times are noise here
    monkeypatch.setattr(search, "pick", lambda models, dense, target: models[-1])
    steps: list[str] = []
    _, config = compress(replace(job, minutes=0.05), Progress(lambda step, *_: steps.append(step)))
    kl = {row["name"]: row["quality"]["kl"]["value"] for row in config.metrics["search"]["models"]}
    ms = {row["name"]: row["ms"] for row in config.metrics["search"]["models"]}
    trained = [name for name in kl if name.endswith(", distilled")]
    assert trained
    for name in trained:
        plain = name.replace(", distilled", "")
        assert steps.count(f"training {plain}") >= FEWEST_STEPS
        assert kl[name] != kl[plain]
        assert ms[name] == ms[plain]  # the same operations
    steps.clear()
    compress(replace(job, minutes=0.05, out=job.out.with_name("again")), Progress(lambda step, *_: steps.append(step)))
    assert not any(step.startswith("training") for step in steps)  # as many steps, whatever time is left now


@pytest.mark.slow
def test_what_hardly_differs_from_the_dense_model_is_not_trained(
    job: CompressJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "TRAINED_KL", 100.0)
    monkeypatch.setattr(search, "distil", lambda *_: pytest.fail("there is nothing to learn"))
    _, config = compress(replace(job, minutes=None))
    assert any("merge" in row["name"] for row in config.metrics["search"]["models"])


@pytest.mark.parametrize("fastest", ["float32", "bfloat16"])
@pytest.mark.slow
def test_a_bundle_holds_the_float_graph_that_was_measured_and_the_weights_where_asked(
    fastest: str, job: CompressJob, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(forwards: Sequence[apply.SearchCandidate], batches: Sequence[int]) -> Any:
        return {run: dict.fromkeys(batches, 1.0 if fastest in str(run) else 2.0) for run in forwards}

    for module in (device, backend):
        monkeypatch.setattr(module, "computes_in_bfloat16", lambda _: True)
    monkeypatch.setattr(measure, "time_in_turns", timed)
    _, config = compress(replace(job, backends=("openvino",), keep_weights=True, target=Target(drop=99)))
    (chosen,) = (row for row in config.metrics["search"]["models"] if row["chosen"])
    graph, _ = load_graph(job.out)
    assert (graph.record.precision, config.graph_only) == (fastest, False)
    assert chosen["computed_by"] == f"openvino {fastest}"
    assert chosen["bytes"] == config.bytes_on_disk  # with the weights
    model, _ = load_bundle(job.out)
    weights = sum(each.numel() for each in model.parameters())
    assert (job.out / "graph.onnx").stat().st_size / weights < (4.9 if fastest == "float32" else 2.9)
    error = 1e-3 if fastest == "float32" else 0.2
    with torch.inference_mode():
        torch.testing.assert_close(
            OnnxSession(graph.data)(held_out_images(photos)), model(held_out_images(photos)), rtol=error, atol=error
        )
    served = open_model(job.out, InferenceOptions(device="cpu", dtype=fastest, backend="openvino")).pipeline
    in_memory = weights * getattr(torch, fastest).itemsize
    assert served.backend.name == "openvino"
    assert served.forward_stage.resident_bytes == pytest.approx(in_memory, rel=0.1)
    served.close()
