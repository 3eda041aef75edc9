"""The schedules that a search tries are those that a model takes."""

import copy
from typing import Any

import pytest

from milkweed.compress.tokens import PROTECT, mergings
from milkweed.models.architectures.registry import create_model
from milkweed.models.architectures.token_blocks import apply_token_plan
from milkweed.models.layers.token_plan import TokenPlan

from ..models.tiny import TINY_T2T, TINY_VIT, TINY_VITAE

VIT: dict[str, Any] = {**TINY_VIT, "depth": 4}
MODELS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "class token": ("deit_tiny_patch16_224", VIT, True),
    "two class tokens": ("deit_tiny_distilled_patch16_224", VIT, True),
    "class token and mean": ("vit_small_patch16_224", {**VIT, "global_pool": "token_avg"}, True),
    "a mean beside a class token": ("vit_small_patch16_224", {**VIT, "global_pool": "avg"}, False),
    "attention": ("vit_small_patch16_224", {**VIT, "global_pool": "map", "class_token": False}, False),
    "T2T-ViT": ("t2t_vit_7", {**TINY_T2T, "img_size": 64, "depth": 4}, True),
    "ViTAE": ("vitae_basic", TINY_VITAE, False),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_takes_every_schedule_that_is_tried(name: str) -> None:
    arch, arguments, class_token = MODELS[name]
    model = create_model(arch, num_classes=3, **arguments)
    tried = list(mergings(model))
    assert {merging.protect for merging in tried} == (set(PROTECT) if class_token else {0.0})
    for merging in tried:
        apply_token_plan(copy.deepcopy(model), TokenPlan(merging))
