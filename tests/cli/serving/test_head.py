"""Tests `milkweed head`: fitted heads against numpy on the model's embeddings, images left out, refusals; `make`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import milkweed
from milkweed.models.heads.embedding_head import EmbeddingHead, parse_head
from milkweed.models.heads.fit import METHODS
from milkweed.models.intervals import share_interval

from ...models.heads.plain_head import expected
from ...support.command import Milkweed, Refused

MAKE = "zoo.head.safetensors"


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    np.save(tmp_path / "labels.npy", np.random.default_rng(0).normal(size=(3, 8)).astype("f2") * 9)
    (tmp_path / "labels.txt").write_text("red fox\nbarn owl\ncrane\n")
    return tmp_path / "labels.npy"


def read(file: Path) -> EmbeddingHead:
    return parse_head(file.read_bytes())


@pytest.mark.parametrize("method", METHODS)
def test_a_fitted_head_knows_the_classes_of_a_folder(
    milkweed: Milkweed, colour_bundle: Path, colour_photos: Path, tmp_path: Path, method: str
) -> None:
    out = tmp_path / "colours.head.safetensors"
    ran = milkweed(
        "head",
        "fit",
        colour_photos,
        "--model",
        colour_bundle,
        "--out",
        out,
        "--method",
        method,
        "--device",
        "cpu",
        "--json",
    ).ok()
    head, said = read(out), ran.document
    assert [label.id for label in head.labels] == ["blue", "green", "red"]
    assert {name: said[name] for name in ("head", "version", "classes", "width", "images", "skipped")} == {
        "head": str(out),
        "version": head.version,
        "classes": 3,
        "width": 32,
        "images": 36,
        "skipped": 0,
    }
    right = round(said["leave_one_out"] * 36)
    assert right > 30
    assert said["interval_95"] == [round(end, 4) for end in share_interval(right, 36)]
    rows, targets = embedded(colour_bundle, colour_photos)
    assert (expected(head, rows).argmax(1) == targets).mean() > 0.9
    with open_bundle(colour_bundle) as model:
        assert head.model_version == model.version
    fit = METHODS[method](rows / np.linalg.norm(rows, axis=1, keepdims=True), targets)
    assert (fit.left_out.argmax(1) == targets).sum() == right
    np.testing.assert_allclose(head.weight, fit.weight, rtol=1e-3, atol=1e-5)
    assert head.scale == pytest.approx(fit.scale, rel=1e-3)


def open_bundle(bundle: Path) -> Any:
    return milkweed.load(bundle, device="cpu")


def embedded(bundle: Path, photos: Path) -> tuple[Any, Any]:
    """The embeddings of a folder's images, sorted by path, and their classes."""
    paths = sorted(photos.rglob("*.png"))
    names = sorted({path.parent.name for path in paths})
    with open_bundle(bundle) as model:
        rows = model.embed(paths).astype(float)
    return rows, np.array([names.index(path.parent.name) for path in paths])


def test_images_that_cannot_be_read_are_named_and_left_out(
    milkweed: Milkweed, colour_bundle: Path, colour_photos: Path, tmp_path: Path
) -> None:
    photos = copied(colour_photos, tmp_path / "photos", 5)
    torn, gone = photos / "red" / "2.png", photos / "blue" / "3.png"
    torn.write_bytes(torn.read_bytes()[:90])
    gone.unlink()
    gone.write_bytes(b"")
    out = tmp_path / "a.safetensors"
    ran = milkweed("head", "fit", photos, "--model", colour_bundle, "--out", out, "--device", "cpu").ok()
    named = [line for line in ran.err.splitlines() if "left out" in line]
    assert [line.split(": ")[1] for line in named] == [str(gone), str(torn)]
    figures = dict(line.split(maxsplit=1) for line in ran.out.splitlines())
    assert (figures["images"], figures["skipped"], figures["version"]) == ("13", "2", read(out).version)


def copied(photos: Path, root: Path, count: int) -> Path:
    for path in photos.rglob("*.png"):
        if int(path.stem) < count:
            (root / path.parent.name).mkdir(parents=True, exist_ok=True)
            (root / path.parent.name / path.name).write_bytes(path.read_bytes())
    return root


def test_what_cannot_be_fitted_is_refused(
    refused: Refused, milkweed: Milkweed, colour_bundle: Path, colour_photos: Path, tmp_path: Path
) -> None:
    out, photos = tmp_path / "a.safetensors", copied(colour_photos, tmp_path / "photos", 3)
    ask = ("head", "fit", photos, "--model", colour_bundle, "--device", "cpu", "--out")
    assert refused(*ask, out, "--method", "svm", code=2) == "--method svm: must be one of ridge, means, knn"
    assert "no such folder" in refused("head", "fit", tmp_path / "none", "--out", out)
    assert "1 folders with images" in refused("head", "fit", tmp_path, "--out", out)
    for name in ("0.png", "1.png"):
        (photos / "green" / name).unlink()
    assert refused(*ask, out) == f"DIR {photos}: fewer than two images that can be read of green"
    assert not out.exists()
    out.write_bytes(b"mine")
    assert refused(*ask, out) == f"--out {out}: exists already"
    assert out.read_bytes() == b"mine"


def test_a_head_is_made_of_text_embeddings(milkweed: Milkweed, texts: Path, tmp_path: Path) -> None:
    out = tmp_path / MAKE
    ran = milkweed("head", "make", texts, "--names", texts.with_suffix(".txt"), "--scale", "50", "--out", out, "--json")
    head, rows = read(out), np.load(texts).astype(float)
    assert ran.ok().document == {"head": str(out), "version": head.version, "classes": 3, "width": 8}
    np.testing.assert_allclose(head.weight, rows / np.linalg.norm(rows, axis=1, keepdims=True), rtol=1e-6)
    assert (head.scale, head.normalize, head.bias.any(), head.model_version) == (50, True, False, "")
    assert [label.label for label in head.labels] == ["red fox", "barn owl", "crane"]
    cosines = rows @ rows[1] / np.linalg.norm(rows, axis=1) / np.linalg.norm(rows[1])
    scores = np.exp(50 * cosines) / np.exp(50 * cosines).sum()
    np.testing.assert_allclose(head.probabilities((7 * rows[1]).astype("f4")), scores, rtol=1e-4, atol=1e-12)


@pytest.mark.parametrize(
    ("values", "names", "words"),
    [
        (np.ones((3, 8)), "a\nb\n", "2 labels for 3 rows of weight"),
        (np.ones((3, 8)), "a\nb\na\n", "the label 'a' is there 2 times"),
        (np.full((3, 8), np.nan), "a\nb\nc\n", "weight has a value that is not a finite number"),
        (np.ones(3), "a\nb\nc\n", "weight is float32 [3]: must be (rows, width)"),
        (np.array(["a", "b"]), "a\nb\n", "could not convert string to float"),
        (np.array([{}, {}], object), "a\nb\n", "Object arrays cannot be loaded"),
        (b"PK\x03\x04" + bytes(50), "a\nb\n", "the magic string is not correct"),
        (np.array(3.0), "a\nb\n", "TEXTS "),
        (None, "a\nb\n", "No such file"),
    ],
)
def test_what_cannot_be_made_is_refused(refused: Refused, tmp_path: Path, values: Any, names: str, words: str) -> None:
    array, labels, out = tmp_path / "v.npy", tmp_path / "v.txt", tmp_path / MAKE
    labels.write_text(names)
    if isinstance(values, bytes):
        array.write_bytes(values)
    elif values is not None:
        np.save(array, values)
    assert words in refused("head", "make", array, "--names", labels, "--out", out)
    assert not out.exists()


def test_classify_asks_a_server_for_a_head(refused: Refused, bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    message = "--head is for a server's heads: it goes with --url"
    assert refused("classify", tmp_path / "a.png", "--head", "birds", code=2) == message
