"""What a Hugging Face config.json says of a model is taken over, or refused in one sentence."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from milkweed.models import Label
from milkweed.models.errors import CheckpointError
from milkweed.models.importing.card import ModelCard, read_card

from .containers import CONFIG

Write = Callable[[Callable[[dict[str, Any]], object]], Path]


@pytest.fixture
def changed(tmp_path: Path) -> Write:
    """timm's config.json with a change, as a file."""

    def write(change: Callable[[dict[str, Any]], object]) -> Path:
        document = copy.deepcopy(CONFIG)
        change(document)
        (tmp_path / "config.json").write_text(json.dumps(document))
        return tmp_path / "config.json"

    return write


def test_read_card_reads_timms_config(changed: Write) -> None:
    card = read_card(changed(lambda d: None))
    assert (card.arch, card.arch_args, card.notes) == ("deit_tiny_patch16_224", CONFIG["model_args"], ())
    assert card.preprocess["size"] == 32
    assert card.labels == (Label("n01", "cat"), Label("n02", "dog"), Label("n03", "n03"))


def test_read_card_reads_the_older_flat_config(changed: Write) -> None:
    card = read_card(changed(lambda d: d.update(d.pop("pretrained_cfg"))))
    assert card == replace(
        read_card(changed(lambda d: None)), arch_args={**CONFIG["model_args"], "global_pool": "token"}
    )


def test_a_card_may_hold_the_architecture_alone(changed: Write) -> None:
    path = changed(lambda d: (d.clear(), d.update(architecture="vit_tiny_patch16_224", pretrained_cfg={})))
    assert read_card(path) == ModelCard("vit_tiny_patch16_224")


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (lambda d: d["pretrained_cfg"].update(crop_mode="border"), "cropped at the centre: its config says 'border'"),
        (
            lambda d: d["pretrained_cfg"].update(interpolation="random"),
            "resized bicubic: 'random' of its config is none",
        ),
    ],
)
def test_preprocessing_that_no_loader_does_is_noted(changed: Write, change: Any, note: str) -> None:
    card = read_card(changed(change))
    assert note in card.notes[0]
    assert card.preprocess["crop_mode"] == "center"


def test_a_squashed_picture_is_the_bundles(changed: Write) -> None:
    card = read_card(changed(lambda d: d["pretrained_cfg"].update(crop_mode="squash")))
    assert (card.preprocess["crop_mode"], card.notes) == ("squash", ())


def test_an_older_config_without_a_crop_mode_crops_the_centre(changed: Write) -> None:
    assert read_card(changed(lambda d: d["pretrained_cfg"].pop("crop_mode"))).preprocess["crop_mode"] == "center"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda d: (d.clear(), d.update(model_type="vit", architectures=["ViTForImageClassification"])),
            "names no architecture of timm: it describes a 'vit' of the transformers library; import the file of",
        ),
        (lambda d: d.update(architecture=3), "names no architecture of timm; import the file of weights alone"),
        (lambda d: d.update(model_args=[1]), "pretrained_cfg and model_args must be objects"),
        (
            lambda d: d["pretrained_cfg"].update(input_size=[3, 224, 196]),
            "input_size [3, 224, 196] must be [3, side, side]",
        ),
        (
            lambda d: d["pretrained_cfg"].update(input_size=[1, 28, 28]),
            "input_size [1, 28, 28] must be [3, side, side]",
        ),
        (lambda d: d["pretrained_cfg"].update(crop_pct=7), "preprocess: crop_pct 7 must be 0.05 to 1"),
        (lambda d: d["pretrained_cfg"].update(mean="x"), "preprocess: mean"),
        (lambda d: d.update(label_names="x"), "label_names must be a list"),
        (lambda d: d.update(label_names=[{}]), "unhashable"),
        (
            lambda d: d.update(label_names={"0": "n01", "3": "n02"}),
            "label_names names class '3', the classes are 0 to 2",
        ),
        (lambda d: d["pretrained_cfg"].update(label_offset=1), "label_offset 1 must be 0"),
    ],
)
def test_bad_cards_are_refused(changed: Write, change: Any, message: str) -> None:
    path = changed(change)
    with pytest.raises(CheckpointError, match=r"^[^\n]*config\.json: [^\n]*$") as caught:
        read_card(path)
    assert message in str(caught.value)


def test_a_card_that_is_not_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json: not JSON"):
        read_card(tmp_path / "config.json")
