"""What a refusal suggests exists, and was tried."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from milkweed.models import create_model, import_checkpoint
from milkweed.models.architectures.meta_init import on_meta
from milkweed.models.architectures.registry import family, list_models
from milkweed.models.errors import CheckpointError
from milkweed.models.importing.families import detect_family

SMALL = {"embed_dim": 24, "depth": 2, "num_heads": 2}


@pytest.mark.parametrize(
    "args",
    [
        {"img_size": 64},
        {"reg_tokens": 4},
        {"img_size": 64, "reg_tokens": 2, "no_embed_class": True},
        {"global_pool": "avg"},
    ],
)
def test_the_arguments_with_which_a_vit_fits_are_in_the_line(tmp_path: Path, args: dict[str, Any]) -> None:
    arch = "vit_tiny_patch16_224"
    torch.save(create_model(arch, num_classes=3, **SMALL, **args).state_dict(), tmp_path / "x.pth")
    with pytest.raises(CheckpointError) as caught:
        import_checkpoint(tmp_path / "x.pth", arch, tmp_path / "b", arch_args=SMALL)
    line = str(caught.value)
    assert "\n" not in line
    found = re.search(r"; it fits with --arch-args '(.*)'$", line)
    assert found is not None, line
    assert json.loads(found[1]) == args
    config = import_checkpoint(tmp_path / "x.pth", arch, tmp_path / "b", arch_args={**SMALL, **args}).config
    assert config.preprocess["size"] == args.get("img_size", 224)


def test_nothing_is_suggested_that_does_not_fit(tmp_path: Path) -> None:
    arch = "vit_tiny_patch16_224"
    torch.save(create_model(arch, num_classes=3, img_size=64, **SMALL).state_dict(), tmp_path / "x.pth")
    with pytest.raises(CheckpointError) as caught:
        import_checkpoint(tmp_path / "x.pth", arch, tmp_path / "b", arch_args={**SMALL, "depth": 3})
    assert "--arch-args" not in str(caught.value)


@pytest.mark.parametrize("args", [{"reg_tokens": 4}, {"img_size": 98}, {"patch_size": 14, "img_size": 98}, {}])
@pytest.mark.parametrize(
    "arch", ["vit_tiny_patch16_224", "deit3_small_patch16_224", "deit_base_distilled_patch16_224", "mixer_s16_224"]
)
def test_the_names_that_a_model_is_said_to_look_like_exist(arch: str, args: dict[str, Any]) -> None:
    if arch == "mixer_s16_224":
        args = {name: {14: 8}.get(value, value) for name, value in args.items() if name == "patch_size"}
    with on_meta():
        state = (
            timm.create_model(arch, **args).state_dict() if arch[0] != "m" else create_model(arch, **args).state_dict()
        )
    family = detect_family(state)
    named = set(re.findall(r"\b[a-z0-9]+_\w*\d\b", family.looks_like))
    assert named <= set(list_models())
    assert set(family.candidates) <= set(list_models())


def test_every_name_that_is_suggested_exists_and_is_near() -> None:
    names, chance = list_models(), random.Random(0)
    for name in chance.sample(names, 20):
        place = chance.randrange(len(name))
        wrong = name[:place] + name[place + 1 :]
        if wrong in names:
            continue
        with pytest.raises(ValueError, match=f"unknown architecture '{wrong}': ") as caught:
            create_model(wrong)
        suggested = re.findall(r"did you mean (.*)\?$", str(caught.value))[0].split(", ")
        assert set(suggested) <= set(names)
        assert len({family(near) for near in suggested}) == 1
