"""Tests `milkweed evaluate`: layouts of data, known answers, agreement with the pipeline, recorded figures."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from milkweed.inference.open import open_model
from milkweed.inference.pipeline import Pipeline
from milkweed.inference.results import TopClasses
from milkweed.jobs.dataset import DataError, labelled_images, read_image, spaced
from milkweed.jobs.evaluate import evaluate
from milkweed.loaders.errors import InputError
from milkweed.models import Label, load_bundle
from milkweed.models.confidence import find_threshold

from ...support.command import Milkweed, Refused
from ...support.repositories import with_confidence

TINY = 1 << 20


def picture(seed: int) -> bytes:
    """A PNG of waves."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:32, 0:32]
    waves = [128 + 120 * np.sin(x / a + y / b) for a, b in rng.uniform(1, 30, (3, 2))]
    out = io.BytesIO()
    Image.fromarray(np.stack(waves, -1).astype(np.uint8)).save(out, "PNG")
    return out.getvalue()


@pytest.fixture(scope="module")
def pipeline(bundle: Path) -> Any:
    pipeline = open_model(bundle).pipeline
    yield pipeline
    pipeline.close()


@pytest.fixture(scope="module")
def answers(pipeline: Pipeline, images: list[bytes]) -> list[tuple[int, ...]]:
    """The best five classes of each image; three different best ones at least, or the tests say little."""
    outcomes = pipeline.classify(images, 5)
    found = [outcome.index for outcome in outcomes if isinstance(outcome, TopClasses)]
    assert len(found) == len(images)
    assert len({index[0] for index in found}) >= 3
    return found


@pytest.fixture
def data(tmp_path: Path, images: list[bytes], answers: list[tuple[int, ...]], labels: tuple[Label, ...]) -> Path:
    """Class folders: 5 of 12 images are labelled as the best answer, 4 as the third, 3 as none of five."""
    root = tmp_path / "val"
    for place, (image, best) in enumerate(zip(images, answers, strict=True)):
        worst = next(index for index in range(len(labels)) if index not in best)
        target = best[0] if place < 5 else best[2] if place < 9 else worst
        folder = root / labels[target].id
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{place}.png").write_bytes(image)
    return root


def test_evaluate_counts_known_answers(milkweed: Milkweed, bundle: Path, data: Path) -> None:
    document = milkweed("evaluate", bundle, data, "--json").ok(quiet=True).document
    assert (document["images"], document["correct1"], document["correct5"]) == (12, 5, 9)
    assert document["top1"] == pytest.approx(100 * 5 / 12, abs=1e-4)
    assert document["top5"] == pytest.approx(75)
    assert document["layout"] == "class folders"
    assert (document["unreadable"], document["passed_over"], document["skipped"]) == (0, 0, [])
    assert document["images_per_second"] > 0
    assert json.loads((bundle / "config.json").read_text())["metrics"] == {"top1": 12.5}
    text = milkweed("evaluate", bundle, data, "--batch-size", 3).ok().out
    assert "top-1     41.67 % (5)" in text
    assert "top-5     75.00 % (9)" in text


def test_evaluate_says_of_how_many_images_the_model_is_sure(
    milkweed: Milkweed, pipeline: Pipeline, bundle: Path, data: Path, labels: Any, tmp_path: Path
) -> None:
    samples = labelled_images(data, labels).samples
    outcomes = pipeline.classify([sample.path.read_bytes() for sample in samples], 5)
    scores = [outcome.score[0] for outcome in outcomes if isinstance(outcome, TopClasses)]
    threshold = sorted(scores)[4]
    sure = [place for place, score in enumerate(scores) if score >= threshold]
    right = [outcomes[place].index[0] == samples[place].target for place in sure]
    with_confidence(bundle, tmp_path / "sure", threshold)
    document = milkweed("evaluate", tmp_path / "sure", data, "--json").ok(quiet=True).document
    assert (document["sure"], document["sure1"]) == (len(sure), sum(right))
    assert 0 < len(sure) < 12
    share, others = sum(right) / len(sure), (5 - sum(right)) / (12 - len(sure))
    text = milkweed("evaluate", tmp_path / "sure", data).ok().out
    assert f"{len(sure) / 12:.2%} of the images ({share:.2%} right), not of the others ({others:.2%} right)" in text
    assert milkweed("evaluate", bundle, data, "--json").document["sure"] is None


def test_evaluate_finds_the_threshold_of_a_bundle(
    milkweed: Milkweed, refused: Refused, pipeline: Pipeline, bundle: Path, labels: tuple[Label, ...], tmp_path: Path
) -> None:
    known, data, few = tmp_path / "known", tmp_path / "many", tmp_path / "few"
    shutil.copytree(bundle, known)
    pictures = [picture(seed) for seed in range(60)]
    best = [outcome for outcome in pipeline.classify(pictures, 1) if isinstance(outcome, TopClasses)]
    scores = np.array([outcome.score[0] for outcome in best])
    right = np.arange(60) % 2 == 0
    for place, (content, outcome) in enumerate(zip(pictures, best, strict=True)):
        target = outcome.index[0] if right[place] else (outcome.index[0] + 1) % len(labels)
        for folder in [data, *([few] if place < 12 else [])]:
            (folder / labels[target].id).mkdir(parents=True, exist_ok=True)
            (folder / labels[target].id / f"{place:02d}.png").write_bytes(content)
    expected = find_threshold(scores, right, "labels")
    assert expected is not None
    before = json.loads((known / "config.json").read_text())
    document = milkweed("evaluate", known, data, "--find-threshold", "--json").ok().document
    after = json.loads((known / "config.json").read_text())
    assert after.pop("confidence") == expected.to_dict()
    step = after["provenance"]["commands"].pop()
    assert (step["command"], step["arguments"]["data"]) == ("evaluate", "many")
    assert after == {**before, "provenance": {**before["provenance"], "commands": after["provenance"]["commands"]}}
    assert after["provenance"]["commands"] == before["provenance"].get("commands", [])
    assert (document["threshold"], document["sure"]) == (expected.threshold, (scores >= expected.threshold).sum())
    milkweed("inspect", known).ok()
    words = refused("evaluate", known, few, "--find-threshold")
    assert words == f"DATA {few}: no threshold tells right answers from wrong ones, of which it needs ten each"


def test_evaluate_agrees_with_classify_at_any_batch_size(pipeline: Pipeline, data: Path, labels: Any) -> None:
    samples = labelled_images(data, labels).samples
    outcomes = pipeline.classify([sample.path.read_bytes() for sample in samples], 5)
    best = [outcome.index[0] for outcome in outcomes if isinstance(outcome, TopClasses)]
    want = sum(index == sample.target for index, sample in zip(best, samples, strict=True))
    for batch_size in (1, 5, 100):
        result = evaluate(pipeline, samples, max_image_bytes=TINY, batch_size=batch_size)
        assert (result.correct1, result.images) == (want, 12)


def test_unreadable_images_are_named_counted_and_skipped(milkweed: Milkweed, bundle: Path, data: Path) -> None:
    folder = next(iter(sorted(data.iterdir())))
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    (folder / "notes.txt").write_text("not an image by name")
    (folder / ".hidden.png").write_text("")
    ran = milkweed("evaluate", bundle, data, "--json").ok()
    assert ran.err.count("\n") == 1
    assert f"skipped {folder / 'broken.png'}: undecodable: " in ran.err
    document = ran.document
    assert (document["images"], document["unreadable"], document["passed_over"]) == (12, 1, 1)
    assert document["skipped"][0]["image"] == str(folder / "broken.png")
    assert document["correct1"] == 5


def test_evaluate_fails_without_a_readable_image(milkweed: Milkweed, bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "n00").mkdir()
    (tmp_path / "n00" / "a.png").write_bytes(b"nothing")
    ran = milkweed("evaluate", bundle, tmp_path, "--json")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.splitlines()[-1] == f"milkweed: error: DATA {tmp_path}: none of 1 images could be read"


def test_spaced_takes_evenly_spaced_images(bundle: Path, data: Path, labels: Any) -> None:
    found = labelled_images(data, labels)
    assert spaced(found.samples, 4) == [found.samples[place] for place in (0, 3, 6, 9)]
    assert spaced(found.samples, 12) == spaced(found.samples, 13) == found.samples


def test_record_goes_into_the_config_and_leaves_the_version(
    milkweed: Milkweed, bundle: Path, data: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy)
    ran = milkweed("evaluate", copy, data, "--record", "--json")
    assert ran.document["recorded"] is True
    _, before = load_bundle(bundle)
    _, after = load_bundle(copy)
    assert after.version == before.version
    assert after.metrics["top1"] == 12.5
    entry = after.metrics["evaluations"]["val"]
    assert (entry["images"], entry["correct1"], entry["top5"]) == (12, 5, 75.0)
    assert entry["versions"]["torch"]
    assert [path.name for path in sorted(copy.iterdir())] == ["config.json", "labels.json", "model.safetensors"]
    milkweed("evaluate", copy, data, "--record", "--limit", 2)
    _, again = load_bundle(copy)
    assert again.metrics["evaluations"]["val"]["images"] == 2


def _put(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    return root


def test_folders_are_named_by_id_text_or_index(tmp_path: Path, labels: Any) -> None:
    root = _put(tmp_path, "n00/a.png", "Barn_Owl/deep/er/b.JPEG", "ölbaum/c.webp", "2/d.gif", "7 up/e.png")
    found = labelled_images(root, labels)
    targets = {sample.path.name: sample.target for sample in found.samples}
    assert targets == {"a.png": 0, "b.JPEG": 1, "c.webp": 5, "d.gif": 2, "e.png": 4}
    assert found.classes == 5


def test_a_text_of_two_classes_is_refused(tmp_path: Path, labels: Any) -> None:
    with pytest.raises(DataError, match="'Crane' is the name of several labels: name the folder by a label's id"):
        labelled_images(_put(tmp_path, "Crane/a.png"), labels)


def test_labelled_files_begin_with_the_id(tmp_path: Path, labels: Any) -> None:
    ids = (*labels, Label("n00_b", "longer"))
    root = _put(tmp_path, "n00_red_fox.JPEG", "n00_b_x.png", "n03-7.png", "n05.png", "list.txt")
    found = labelled_images(root, ids)
    targets = {sample.path.name: sample.target for sample in found.samples}
    assert targets == {"n00_red_fox.JPEG": 0, "n00_b_x.png": 7, "n03-7.png": 3, "n05.png": 5}
    assert (found.layout, found.passed_over) == ("labelled files", 1)


def test_links_to_folders_are_followed_and_circles_end(tmp_path: Path, labels: Any) -> None:
    _put(tmp_path / "elsewhere", "a.png")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "n00").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "self").symlink_to(tmp_path / "elsewhere")
    assert len(labelled_images(tmp_path / "data", labels).samples) == 1


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), "no images in it (0 other files)"),
        (("n00/a.txt",), "no images in it (1 other files)"),
        (("train/n00/a.png", "test/n00/a.png"), "2 of 2 folders fit none of the 7 labels: test, train (the first"),
        (("n00_a.png", "cat.png"), "1 of 2 files fit none of the 7 labels: cat.png (the first label is id 'n00'"),
        (("n00/empty.txt", "n00_a.png"), "1 folders, but no image in any of them"),
    ],
)
def test_evaluate_refuses_data_that_fits_no_label(
    refused: Refused, bundle: Path, tmp_path: Path, names: tuple[str, ...], message: str
) -> None:
    root = tmp_path / "data"
    root.mkdir()
    assert f"DATA {_put(root, *names)}: {message}" in refused("evaluate", bundle, root)


def test_evaluate_refuses_data_that_is_no_folder(refused: Refused, bundle: Path, tmp_path: Path) -> None:
    assert refused("evaluate", bundle, tmp_path / "no") == f"DATA {tmp_path / 'no'}: no such folder"
    _put(tmp_path, "file")
    assert refused("evaluate", bundle, tmp_path / "file") == f"DATA {tmp_path / 'file'}: is a file, not a folder"


def test_read_image_reads_no_file_that_is_too_large(tmp_path: Path) -> None:
    path = _put(tmp_path, "a.png") / "a.png"
    assert read_image(path, 1) == b"x"
    outcome = read_image(path, 0)
    assert isinstance(outcome, InputError)
    assert (outcome.code, outcome.message) == ("too_large", "image file has 1 bytes: limit 0 bytes")
