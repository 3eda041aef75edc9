"""Tests `milkweed embed`: rows and lines against `milkweed.load`, resumed files, images without an embedding."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import milkweed

from ...support.command import Milkweed, Refused


@pytest.fixture
def photos(tmp_path: Path, images: list[bytes]) -> Path:
    """Five images, and one that is none."""
    root = tmp_path / "photos"
    root.mkdir()
    for number, image in enumerate(images[:5]):
        (root / f"{number}.png").write_bytes(image)
    (root / "torn.png").write_bytes(images[5][:100])
    return root


@pytest.fixture
def expected(bundle: Path, images: list[bytes]) -> Any:
    with milkweed.load(bundle, device="cpu") as model:
        rows = model.embed(images[:5])
        assert rows.shape == (5, model.embedding_width)
        np.testing.assert_array_equal(model.embed(images[0]), rows[0])
        lengths = np.linalg.norm(model.embed(images[:5], normalize=True), axis=1)
        np.testing.assert_allclose(lengths, 1, rtol=1e-6)
        return rows


def test_an_array_has_a_row_an_image(
    milkweed: Milkweed, bundle: Path, photos: Path, expected: Any, tmp_path: Path
) -> None:
    out = tmp_path / "v.npy"
    ran = milkweed("embed", "--model", bundle, photos, "--output", out)
    assert ran.code == 1
    assert ran.err.splitlines()[-1].startswith("milkweed: error: 1 of 6 images got no answer, the first: ")
    rows, names = np.load(out), (tmp_path / "v.txt").read_text().splitlines()
    assert names == sorted(map(str, photos.iterdir()))
    np.testing.assert_array_equal(rows[:5], expected)
    assert np.isnan(rows[5]).all()


def test_lines_are_the_same_and_can_be_resumed(
    milkweed: Milkweed, bundle: Path, photos: Path, expected: Any, tmp_path: Path
) -> None:
    (photos / "torn.png").unlink()
    out = tmp_path / "v.ndjson"
    milkweed("embed", "--model", bundle, photos / "0.png", photos / "1.png", "--output", out).ok()
    again = milkweed("embed", "--model", bundle, photos, "--output", out, "--resume").ok()
    assert "holds 2 answers: 3 of 5 images are left" in again.err
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [set(line) for line in lines] == [{"image", "model", "version", "embedding"}] * 5
    np.testing.assert_array_equal(np.array([line["embedding"] for line in lines], np.float32), expected)
    assert [
        json.loads(line)["image"] for line in milkweed("embed", "--model", bundle, photos / "0.png").out.splitlines()
    ]


def test_what_cannot_be_is_refused(refused: Refused, bundle: Path, photos: Path, tmp_path: Path) -> None:
    taken = tmp_path / "v.npy"
    taken.write_bytes(b"")
    ask = ("embed", "--model", bundle, photos)
    assert refused(*ask, "--output", taken) == f"--output {taken}: {taken} exists already"
    other = tmp_path / "w.npy"
    assert refused(*ask, "--output", other, "--resume", code=2) == "--resume goes with --output FILE.ndjson"
