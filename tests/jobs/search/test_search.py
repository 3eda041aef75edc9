"""A search from a small model and pictures to a bundle: its record is true, a killed one goes on, what it refuses."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from milkweed.inference import backend, device
from milkweed.inference.open import InferenceOptions, open_model
from milkweed.jobs.dataset import DataError
from milkweed.jobs.search import distil, runs, search, timing
from milkweed.jobs.search.compress import compress
from milkweed.jobs.search.front import Target, TargetError
from milkweed.jobs.search.job import SearchJob
from milkweed.jobs.search.levers import Bits, Levers
from milkweed.jobs.search.search import Found
from milkweed.jobs.search.trials import TrialsError
from milkweed.loaders.dataset.evaluation import PreparedImages
from milkweed.loaders.dataset.training import Sample
from milkweed.loaders.preprocess.spec import PreprocessSpec
from milkweed.models import BundleConfig, create_model, load_bundle, save_bundle
from milkweed.models.bundle.graph import load_graph
from milkweed.models.bundle.labels import default_labels
from milkweed.models.layers.token_merging import TokenMerging
from milkweed.models.onnx.session import OnnxSession
from milkweed.models.progress import Progress
from milkweed.models.report import Frontier, read_report

pytest.importorskip("nncf", reason="the extra `quantize` is not installed")

ARCH = "deit_tiny_patch16_224"
ARGS = {"num_classes": 5, "embed_dim": 32, "depth": 3, "num_heads": 2, "img_size": 32, "patch_size": 8}
PREPROCESS = {"size": 32, "crop_pct": 1.0, "interpolation": "bicubic", "mean": [0.5] * 3, "std": [0.5] * 3}
COUNT = 72


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(COUNT):
        rng = np.random.default_rng(number)
        pixels = rng.uniform(0, 255, 3) + rng.normal(0, 40, (32, 32, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{number:02d}.png")
    return folder


def saved(path: Path, **arguments: Any) -> Path:
    torch.manual_seed(0)
    model = create_model(ARCH, **ARGS, **arguments).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.mul_(30 if name == "head.weight" else 4)
    config = BundleConfig(arch=ARCH, arch_args={**ARGS, **arguments}, preprocess=PREPROCESS)
    save_bundle(path, model, config, default_labels(5))
    return path


@pytest.fixture(scope="session")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("vit") / "vit")


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """One schedule, one quantisation, short timings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "mergings", lambda depth, token: [TokenMerging(1, 1, 0.4, 0.1)])
        patch.setattr(search, "BITS", (Bits(),))
        patch.setattr(search, "MOST_KL", 100.0)
        patch.setattr(timing, "SECONDS", 0.01)
        patch.setattr(timing, "TURN_SECONDS", 0.001)
        yield


@pytest.fixture
def job(vit: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SearchJob:
    """A search in torch, which needs no exports, without quantisation, which takes longest, and without training."""
    monkeypatch.setattr(search, "BITS", ())
    out, anything = tmp_path / "out", Target(bytes=1 << 30)
    return SearchJob(source=vit, out=out, images=photos, target=anything, backends=("torch",), distil=False)


class Killed(BaseException):
    """Whatever ends a process; pytest itself listens to KeyboardInterrupt."""


@dataclass(frozen=True)
class Searched:
    """A search with all levers that was killed where each kind of step was first told."""

    out: Path
    found: Found
    config: BundleConfig
    kills: Sequence[str]
    notes: Sequence[str]
    quantised: Sequence[str]


@pytest.fixture(scope="module")
def searched(vit: Path, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Searched:
    out = tmp_path_factory.mktemp("searched") / "out"
    job = SearchJob(source=vit, out=out, images=photos, target=Target(bytes=95_000), distil=False)
    kills, notes, quantised = list[str](), list[str](), list[str]()
    quantise = runs.quantized_graph

    def step(name: str, *_: int) -> None:
        if (kind := name.split()[0]) not in kills:
            kills.append(kind)
            raise Killed

    def counted(source: Path, *arguments: Any) -> Any:
        quantised.append(source.name)
        return quantise(source, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "quantized_graph", counted)
        while True:
            try:
                found, config = compress(job, Progress(step=step, note=notes.append))
            except Killed:
                assert not out.exists()
                continue
            return Searched(out, found, config, kills, notes, quantised)


def divergence(dense: torch.Tensor, found: torch.Tensor) -> float:
    """KL(dense || found) of logits."""
    p, q = dense.double().softmax(-1), found.double().softmax(-1)
    return float((p * (p / q).log()).sum(-1).mean())


def judging(photos: Path) -> torch.Tensor:
    samples = [Sample(path, None) for path in sorted(photos.iterdir())][1::2]
    (images, _), *rest = PreparedImages(samples, PreprocessSpec.from_dict(PREPROCESS), COUNT)
    assert rest == []
    return images


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
    images = judging(photos)
    dense, _ = load_bundle(vit)
    with torch.inference_mode():
        again = divergence(dense(images), OnnxSession(graph.data)(images))
    assert again == pytest.approx(chosen["quality"]["kl"]["value"], rel=0.25)  # another runtime rounds otherwise
    names = {row["name"] for row in record["models"]}
    assert {"dense", "class token last", "class token last, int8"} < names
    assert any("merge 40 %" in name for name in names)
    small = [row for row in record["models"] if row["bytes"] <= 95_000]
    assert chosen["quality"]["kl"]["value"] == min(row["quality"]["kl"]["value"] for row in small)
    assert not (out.parent / ".out.search").exists()
    assert config.tokens == searched.found.chosen.levers.tokens
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
    assert report.warnings[0].startswith("the judging images chose among the models")
    assert (out / "report.html").read_text().count("<svg") == 2


def test_a_search_killed_at_any_step_goes_on(searched: Searched) -> None:
    assert {"reading", "exporting", "timing", "quantising", "token"} == set(searched.kills)
    assert any("going on with the unfinished search" in note for note in searched.notes)
    assert len(searched.quantised) == len(set(searched.quantised)) == 2  # the exact model and a schedule, each once
    assert any(re.fullmatch(r"search: \d of \d models(, about \d+ min left)?", note) for note in searched.notes)


def test_a_model_that_merges_is_trained_and_measured_again(job: SearchJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distil, "STEPS", 2)
    monkeypatch.setattr(distil, "RATE", 1e-3)
    monkeypatch.setattr(search, "front", lambda models, batch: models)  # times are noise here, and so is a front
    monkeypatch.setattr(search, "pick", lambda models, dense, target: models[-1])
    steps: list[str] = []
    _, config = compress(replace(job, distil=True), Progress(lambda step, *_: steps.append(step)))
    kl = {row["name"]: row["quality"]["kl"]["value"] for row in config.metrics["search"]["models"]}
    ms = {row["name"]: row["ms"] for row in config.metrics["search"]["models"]}
    trained = [name for name in kl if name.endswith(", distilled")]
    assert trained
    for name in trained:
        plain = name.replace(", distilled", "")
        assert f"training {plain}" in steps
        assert kl[name] != kl[plain]
        assert ms[name] == ms[plain]  # the same operations


def test_another_searchs_folder_is_not_gone_on_with(job: SearchJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search.Search, "run", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        compress(job)
    with pytest.raises(TrialsError, match=r"batches \[1, 8\], not \[2\]"):
        compress(replace(job, batches=(2,)))


def test_what_cannot_be_promised_says_what_can(job: SearchJob) -> None:
    with pytest.raises(TargetError, match="1000 times as fast as dense cannot be kept: the fastest of"):
        compress(replace(job, target=Target(speedup=1000)))
    assert not job.out.exists()
    _, config = compress(replace(job, target=Target(bytes=1 << 30)))  # what was measured serves the next promise
    assert config.metrics["search"]["models"]


def test_levers_that_a_model_does_not_take_are_named(job: SearchJob, tmp_path: Path) -> None:
    pooled = saved(tmp_path / "pooled", global_pool="avg")
    notes: list[str] = []
    _, config = compress(replace(job, source=pooled), Progress(note=notes.append))
    assert any(note.startswith("without class token last: ") and "avg" in note for note in notes)
    assert all("class token last" not in row["name"] for row in config.metrics["search"]["models"])


def test_the_first_schedule_that_keeps_a_speed_is_bisected(job: SearchJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def share(levers: Levers) -> float:
        return 0.0 if levers.tokens.merging is None else levers.tokens.merging.share

    schedules = [TokenMerging(1, 1, k / 16, 0.1) for k in range(1, 9)]
    monkeypatch.setattr(search, "mergings", lambda depth, token: schedules)
    monkeypatch.setattr(search.Search, "_kl", lambda self, levers: share(levers))
    monkeypatch.setattr(search.Search, "_speedup", lambda self, levers: 1 + 10 * (share(levers) or 10))
    monkeypatch.setattr(search.Search, "_wanted_speedup", lambda self: 1 + 10 * 5.5 / 16)
    found, _ = compress(job)
    tried = sorted({16 * share(run.levers) for run in found.models if share(run.levers)})
    assert {5.0, 6.0} <= set(tried)  # the last that is too slow, and the first that is not
    assert len(tried) <= 4


def test_narrower_layers_keep_a_promise_of_bytes(job: SearchJob, vit: Path) -> None:
    whole = sum(each.numel() * 4 for each in load_bundle(vit)[0].state_dict().values())
    _, config = compress(replace(job, target=Target(bytes=int(0.75 * whole))))
    (chosen,) = (row for row in config.metrics["search"]["models"] if row["chosen"])
    assert "hidden units" in chosen["name"]
    assert 0.7 * whole < chosen["bytes"] <= 0.75 * whole
    model, read = load_bundle(job.out)
    assert read.widths == config.widths
    assert sum(each.numel() * 4 for each in model.state_dict().values()) == chosen["bytes"]
    least = min(row["quality"]["kl"]["value"] for row in config.metrics["search"]["models"] if "units" in row["name"])
    assert chosen["quality"]["kl"]["value"] == least


def test_fewer_bytes_than_there_can_be_are_refused_with_the_least(job: SearchJob) -> None:
    with pytest.raises(TargetError, match=r"1,000 bytes cannot be kept: the least of \d+ models has .* 5 % of hidden"):
        compress(replace(job, target=Target(bytes=1000)))


def test_a_cpu_without_bfloat16_computes_in_float32(job: SearchJob, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (search, device):
        monkeypatch.setattr(module, "computes_in_bfloat16", lambda _: False)
    _, config = compress(job)
    assert {row["computed_by"] for row in config.metrics["search"]["models"]} == {"torch float32"}


def test_a_backend_that_is_missing_is_named(job: SearchJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "runtime_version", lambda name: None)
    notes: list[str] = []
    compress(replace(job, backends=("torch", "openvino")), Progress(note=notes.append))
    assert "OpenVINO is not installed: pip install 'milkweed[openvino]'" in notes
    with pytest.raises(backend.BackendError, match="OpenVINO is not installed"):
        compress(replace(job, backends=("openvino",), out=job.out.with_name("other")))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda n: n >= 20, "20 of 20 images can be read, a search needs 32"),
        (None, "answers to 36 images are all the same"),
    ],
)
def test_images_that_teach_nothing_are_refused(
    job: SearchJob, photos: Path, tmp_path: Path, spoil: Callable[[int], bool] | None, said: str
) -> None:
    folder = tmp_path / "few"
    folder.mkdir()
    for number, path in enumerate(sorted(photos.iterdir())):
        if spoil is None:
            (folder / path.name).write_bytes((photos / "00.png").read_bytes())
        elif not spoil(number):
            (folder / path.name).write_bytes(path.read_bytes())
    with pytest.raises(DataError, match=said):
        compress(replace(job, images=folder))


@pytest.mark.parametrize("fastest", ["float32", "bfloat16"])
def test_a_bundle_holds_the_float_graph_that_was_measured_and_the_weights_where_asked(
    fastest: str, job: SearchJob, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(forwards: Sequence[runs.Run], batches: Sequence[int]) -> Any:
        return {run: dict.fromkeys(batches, 1.0 if fastest in str(run) else 2.0) for run in forwards}

    for module in (device, backend):
        monkeypatch.setattr(module, "computes_in_bfloat16", lambda _: True)
    monkeypatch.setattr(runs, "time_in_turns", timed)
    _, config = compress(replace(job, backends=("openvino",), keep_weights=True, target=Target(drop=99)))
    (chosen,) = (row for row in config.metrics["search"]["models"] if row["chosen"])
    graph, _ = load_graph(job.out)
    assert (graph.record.precision, config.graph_only) == (fastest, False)
    assert chosen["computed_by"] == f"openvino {fastest}"
    assert (job.out / "graph.onnx").stat().st_size == chosen["bytes"]
    model, _ = load_bundle(job.out)
    weights = sum(each.numel() for each in model.parameters())
    assert chosen["bytes"] / weights < (4.9 if fastest == "float32" else 2.9)
    error = 1e-3 if fastest == "float32" else 0.2
    with torch.inference_mode():
        torch.testing.assert_close(
            OnnxSession(graph.data)(judging(photos)), model(judging(photos)), rtol=error, atol=error
        )
    served = open_model(job.out, InferenceOptions(device="cpu", dtype=fastest)).pipeline
    in_memory = weights * getattr(torch, fastest).itemsize
    assert served.backend.name == "openvino"
    assert served.forward_stage.resident_bytes == pytest.approx(in_memory, rel=0.1)
    served.close()
