"""Folders that the installed timm writes, and older forms of its config.json, are imported as timm reads them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.models import save_for_hf

from milkweed.models import Label, import_checkpoint, load_bundle
from milkweed.models.errors import CheckpointError

from ..tiny import logits

SMALL_SWIN = {"img_size": 64, "window_size": 4, "embed_dim": 16, "depths": (1, 1), "num_heads": (1, 2)}
NAMES = {"label_names": ["n1", "n2", "n3"], "label_descriptions": {"n1": "cat", "n2": "dog"}}


def written(folder: Path, arch: str, args: dict[str, Any], safe: bool = True, **config: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    model = timm.create_model(arch, **args).eval()
    # timm before 1.0.31 writes only those arguments that it is given.
    given = {name: value for name, value in args.items() if name not in ("num_classes", "drop_path_rate")}
    save_for_hf(model, str(folder), model_config=config, model_args=given, safe_serialization=safe)
    return model


@pytest.mark.parametrize(
    ("arch", "args", "size"),
    [
        ("test_vit", {"num_classes": 3}, 160),
        ("test_vit", {"num_classes": 3, "img_size": 96}, 96),
        ("test_vit", {"num_classes": 3, "img_size": (96, 96), "dynamic_img_size": True, "drop_path_rate": 0.1}, 96),
        ("test_vit", {"num_classes": 3, "global_pool": "avg", "reg_tokens": 2, "qkv_bias": False}, 160),
        ("swin_tiny_patch4_window7_224", {"num_classes": 3, **SMALL_SWIN}, 64),
        ("levit_128s", {"num_classes": 3}, 224),
    ],
)
def test_a_folder_that_timm_wrote_answers_as_timm_does(
    tmp_path: Path, arch: str, args: dict[str, Any], size: int
) -> None:
    model = written(tmp_path / "f", arch, args, safe=arch != "levit_128s", **NAMES)
    config = import_checkpoint(tmp_path / "f", None, tmp_path / "b").config
    assert (config.num_classes, config.preprocess["size"]) == (3, size)
    assert config.preprocess["crop_pct"] == model.pretrained_cfg["crop_pct"]
    assert config.labels == (Label("n1", "cat"), Label("n2", "dog"), Label("n3", "n3"))
    loaded, _ = load_bundle(tmp_path / "b")
    assert torch.allclose(logits(loaded, size), logits(model, size), atol=1e-6)


def test_a_squashed_picture_stays_one_and_the_centre_is_not_said(tmp_path: Path) -> None:
    written(tmp_path / "f", "test_vit", {"num_classes": 3})
    assert "crop_mode" not in import_checkpoint(tmp_path / "f", None, tmp_path / "b").config.preprocess
    document = json.loads((tmp_path / "f" / "config.json").read_text())
    document["pretrained_cfg"]["crop_mode"] = "squash"
    (tmp_path / "f" / "config.json").write_text(json.dumps(document))
    assert import_checkpoint(tmp_path / "f", None, tmp_path / "c").config.preprocess["crop_mode"] == "squash"


Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[Change], Path]:
    """A folder of timm's for images of 96 px, with a change to its config.json."""

    def write(change: Change) -> Path:
        written(tmp_path / "f", "test_vit", {"num_classes": 3, "img_size": 96}, **NAMES)
        document = json.loads((tmp_path / "f" / "config.json").read_text())
        change(document)
        (tmp_path / "f" / "config.json").write_text(json.dumps(document))
        return tmp_path / "f"

    return write


def older(document: dict[str, Any]) -> None:
    """Older versions of timm wrote no model_args: the image size stands in pretrained_cfg alone."""
    del document["model_args"]
    document["pretrained_cfg"].update(fixed_input_size=True, input_size=[3, 96, 96])


def flat(document: dict[str, Any]) -> None:
    """The oldest form: no pretrained_cfg, and labels under their former name."""
    older(document)
    document.update({**document.pop("pretrained_cfg"), "num_classes": 3})
    document["labels"] = document.pop("label_names")


@pytest.mark.parametrize("change", [older, flat, lambda d: None])
def test_older_forms_give_the_same_bundle(tmp_path: Path, folder: Any, change: Change) -> None:
    config = import_checkpoint(folder(change), None, tmp_path / "b").config
    assert (config.arch, config.num_classes, config.preprocess["size"]) == ("test_vit", 3, 96)
    assert [label.label for label in config.labels] == ["cat", "dog", "n3"]


def test_labels_by_index_may_have_holes(tmp_path: Path, folder: Any) -> None:
    path = folder(lambda d: d.update(label_names={"0": "n1", "2": "n7"}))
    labels = import_checkpoint(path, None, tmp_path / "b").config.labels
    assert labels == (Label("n1", "cat"), Label("class 1", "class 1"), Label("n7", "n7"))


def test_labels_of_another_number_are_left_out_aloud(tmp_path: Path, folder: Any) -> None:
    report = import_checkpoint(folder(lambda d: d.update(label_names=["a", "b"])), None, tmp_path / "b")
    assert report.config.labels[0] == Label("0", "class 0")
    assert "left out the 2 labels of its config: it has 3 classes" in report.notes


def test_a_config_of_another_architecture_is_left_out_aloud(tmp_path: Path, folder: Any) -> None:
    path = folder(lambda d: d.update(architecture="test_vit2"))
    report = import_checkpoint(path, "test_vit", tmp_path / "b", arch_args={"img_size": [96, 96]})
    assert "its config.json was not used: it describes 'test_vit2'" in report.notes
    assert (report.config.arch_args["img_size"], report.config.preprocess["size"]) == (96, 96)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["model_args"].update(in_chans=1), "in_chans 1 must be 3: images have 3 channels"),
        (lambda d: d["model_args"].update(block_fn="Block"), "test_vit takes no argument 'block_fn'"),
        (lambda d: d["model_args"].update(img_size=[96, 64]), r"img_size \[96, 64\]: images are square"),
        (lambda d: d["pretrained_cfg"].update(input_size=[1, 96, 96]), r"input_size \[1, 96, 96\] must be \[3, side"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(tmp_path: Path, folder: Any, change: Change, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^[^\n]*{message}[^\n]*$"):
        import_checkpoint(folder(change), None, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_the_repository_of_another_number_of_classes_is_refused(tmp_path: Path, folder: Any) -> None:
    with pytest.raises(CheckpointError, match="the classifier has 3 classes, num_classes is 4"):
        import_checkpoint(folder(lambda d: None), None, tmp_path / "b", num_classes=4)
