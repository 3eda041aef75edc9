"""Commands on a model whose images may have several classes: what serves takes it, what judges by one class refuses."""

from pathlib import Path
from typing import Any

import pytest

from milkweed.models import read_config

from ...models.importing.transformers.folders import written_multi_label
from ...support.command import Milkweed, Refused

TASK = "multi_label_classification"


@pytest.fixture
def multi(milkweed: Milkweed, tmp_path: Path) -> Path:
    written_multi_label(tmp_path / "hub")
    milkweed("import", tmp_path / "hub", tmp_path / "multi").ok()
    return tmp_path / "multi"


def test_inspect_convert_and_classify_take_it(
    milkweed: Milkweed, multi: Path, bundle: Path, images: list[bytes], tmp_path: Path
) -> None:
    assert "classes        3, several an image: each score is a sigmoid\n" in milkweed("inspect", multi).out
    assert milkweed("inspect", multi, "--json").document["problem_type"] == TASK
    assert milkweed("inspect", bundle, "--json").document["problem_type"] == "single_label_classification"
    milkweed("convert", multi, tmp_path / "int8", "--storage", "int8").ok()
    assert read_config(tmp_path / "int8").problem_type == TASK
    (tmp_path / "a.png").write_bytes(images[0])
    document = milkweed("classify", "--model", multi, tmp_path / "a.png", "--json").ok().document
    assert abs(sum(p["score"] for p in document["results"][0]["predictions"]) - 1) > 0.01


@pytest.mark.parametrize(
    ("command", "judge"),
    [
        (("evaluate", "multi", "photos"), "evaluate"),
        (("compress", "multi", "out", "--images", "photos"), "compress"),
        (("train", "out", "--data", "photos", "--from", "multi"), "train"),
        (("train", "out", "--data", "photos", "--arch", "vit_tiny_patch16_224", "--distill", "multi"), "train"),
        (("convert", "multi", "out", "--storage", "int8", "--images", "photos"), "a conversion with images"),
    ],
)
def test_what_judges_by_one_class_refuses_it(
    refused: Refused, multi: Path, colour_photos: Path, tmp_path: Path, command: tuple[Any, ...], judge: str
) -> None:
    places = {"multi": multi, "photos": colour_photos, "out": tmp_path / "out"}
    said = refused(*(places.get(word, word) for word in command))
    assert said == f"bundle {multi}: problem_type {TASK}: {judge} judges by one class an image"
    assert not (tmp_path / "out").exists()
