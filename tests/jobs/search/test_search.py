"""A search from a small model and pictures to a bundle: its record is true, a killed one goes on, what it refuses."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from milkweed.jobs.dataset import DataError
from milkweed.jobs.search import distil, runs, search, timing
from milkweed.jobs.search.compress import compress
from milkweed.jobs.search.front import Target, TargetError
from milkweed.jobs.search.job import SearchJob
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
ARGS = {"num_classes": 5, "embed_dim": 32, "depth": 4, "num_heads": 2, "img_size": 32, "patch_size": 8}
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


@pytest.fixture
def job(vit: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SearchJob:
    """Two schedules, one alpha, short timings, no training, any speed."""
    monkeypatch.setattr(
        search, "mergings", lambda depth, token: [TokenMerging(1, 1, share, 0.1) for share in (0.2, 0.4)]
    )
    monkeypatch.setattr(search, "ALPHAS", (None,))
    monkeypatch.setattr(search, "MOST_KL", 100.0)
    monkeypatch.setattr(timing, "SECONDS", 0.01)
    return SearchJob(source=vit, out=tmp_path / "out", images=photos, target=Target(bytes=1 << 30), distil=False)


@pytest.fixture
def no_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without quantisation, which takes longest."""
    monkeypatch.setattr(search, "ALPHAS", ())


def divergence(dense: torch.Tensor, found: torch.Tensor) -> float:
    """KL(dense || found) of logits."""
    p, q = dense.double().softmax(-1), found.double().softmax(-1)
    return float((p * (p / q).log()).sum(-1).mean())


def judging(photos: Path) -> torch.Tensor:
    samples = [Sample(path, None) for path in sorted(photos.iterdir())][1::2]
    (images, _), *rest = PreparedImages(samples, PreprocessSpec.from_dict(PREPROCESS), COUNT)
    assert rest == []
    return images


def test_the_bundle_is_what_the_record_says(job: SearchJob, vit: Path, photos: Path) -> None:
    found, config = compress(replace(job, target=Target(bytes=95_000)))
    graph, read = load_graph(job.out)
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
    assert not job.work.exists()
    assert config.tokens == found.chosen.levers.tokens
    report = read_report(job.out)
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
    assert (job.out / "report.html").read_text().count("<svg") == 2


def test_a_killed_search_goes_on_and_finds_the_same(job: SearchJob, monkeypatch: pytest.MonkeyPatch) -> None:
    quantise, made = runs.quantized_graph, list[str]()

    def once(source: Path, *arguments: Any) -> Any:
        if len(made) == 1:
            raise KeyboardInterrupt
        made.append(source.name)
        return quantise(source, *arguments)

    monkeypatch.setattr(runs, "quantized_graph", once)
    with pytest.raises(KeyboardInterrupt):
        compress(job)
    assert not job.out.exists()
    measured = (job.work / "trials.jsonl").read_text().count("measured/")
    assert measured >= 3

    def counted(source: Path, *arguments: Any) -> Any:
        made.append(source.name)
        return quantise(source, *arguments)

    monkeypatch.setattr(runs, "quantized_graph", counted)
    notes: list[str] = []
    _, config = compress(job, Progress(note=notes.append))
    assert any("going on with the unfinished search" in note for note in notes)
    assert len(made) == len(set(made)) == 3  # the exact model and two schedules, each once
    assert len(config.metrics["search"]["models"]) >= measured


def test_a_model_that_merges_is_trained_and_measured_again(job: SearchJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distil, "STEPS", 2)
    monkeypatch.setattr(distil, "RATE", 1e-3)
    monkeypatch.setattr(search, "front", lambda models, batch: models)  # times are noise here, and so is a front
    monkeypatch.setattr(search, "pick", lambda models, dense, target: models[-1])
    steps: list[str] = []
    _, config = compress(replace(job, distil=True), Progress(lambda step, *_: steps.append(step)))
    kl = {row["name"]: row["quality"]["kl"]["value"] for row in config.metrics["search"]["models"]}
    trained = [name for name in kl if name.endswith(", distilled, int8")]
    assert trained
    for name in trained:
        plain = name.replace(", distilled", "")
        assert f"training {plain.removesuffix(', int8')}" in steps
        assert kl[name] != kl[plain]


def test_another_searchs_folder_is_not_gone_on_with(job: SearchJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search.Search, "run", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        compress(job)
    with pytest.raises(TrialsError, match=r"batches \[1, 8\], not \[2\]"):
        compress(replace(job, batches=(2,)))


@pytest.mark.usefixtures("no_bits")
def test_what_cannot_be_promised_says_what_can(job: SearchJob) -> None:
    with pytest.raises(TargetError, match="1000 times as fast as dense cannot be kept: the fastest of"):
        compress(replace(job, target=Target(speedup=1000)))
    assert not job.out.exists()
    _, config = compress(replace(job, target=Target(bytes=1 << 30)))  # what was measured serves the next promise
    assert config.metrics["search"]["models"]


@pytest.mark.usefixtures("no_bits")
def test_levers_that_a_model_does_not_take_are_named(job: SearchJob, tmp_path: Path) -> None:
    pooled = saved(tmp_path / "pooled", global_pool="avg")
    notes: list[str] = []
    _, config = compress(replace(job, source=pooled), Progress(note=notes.append))
    assert any(note.startswith("without class token last: ") and "avg" in note for note in notes)
    assert all("class token last" not in row["name"] for row in config.metrics["search"]["models"])


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
