"""The objectives of a distillation against their definitions, block by block and number by number."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from milkweed.compress.distill.blocks import block_names, feature_error, intermediates
from milkweed.compress.distill.objectives import FeatureDistillation
from milkweed.models.architectures.registry import create_model
from milkweed.models.architectures.token_blocks import apply_token_plan
from milkweed.models.layers.token_plan import TokenMerging, TokenPlan
from milkweed.models.training import Distillation, TrainingRecipe, mix

from .conftest import Case

RECIPE = TrainingRecipe(epochs=1, batch_size=4, mixup=0.0, cutmix=0.0)
BLOCKS = ("blocks.0", "blocks.1")


def normalised(tokens: Tensor) -> np.ndarray[Any, Any]:
    x = tokens.double().numpy()
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def error(features: Tensor, wanted: Tensor) -> float:
    return float(np.mean((normalised(features) - normalised(wanted)) ** 2))


def stages(model: Any, images: Tensor) -> list[Tensor]:
    """Tokens before the first block and after each, by the model's own parts."""
    x = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(images))))
    found = [x]
    for block in model.blocks:
        found.append(block(found[-1]))
    return found


def test_the_blocks_of_each_family_are_found(case: Case, tiny_vitae: dict[str, Any]) -> None:
    assert block_names(case.dense) == BLOCKS
    vitae = create_model("vitae_basic", num_classes=5, **tiny_vitae)
    assert block_names(vitae) == ("layers.0.RC", "layers.1.RC", "layers.1.NC.0", "layers.1.NC.1")
    with pytest.raises(ValueError, match="Sequential has no blocks"):
        block_names(nn.Sequential(nn.Linear(2, 2)))


def test_the_distance_of_every_blocks_output_counts_and_teaches_the_blocks_before_it(case: Case) -> None:
    images = case.images[:4]
    case.compressed.requires_grad_(True)
    with_blocks = FeatureDistillation(case.dense, RECIPE, blocks=BLOCKS)
    answers_alone = replace(with_blocks, feature_weight=0.0)
    distance = with_blocks(case.compressed, images, None) - answers_alone(case.compressed, images, None)
    with torch.no_grad():
        dense, own = stages(case.dense, images), stages(case.compressed, images)
    assert distance.item() == pytest.approx(sum(error(own[k], dense[k]) for k in (1, 2)) / 2, rel=1e-4)
    assert distance.item() > 1e-3
    assert with_blocks(case.dense, images, None).item() == pytest.approx(0, abs=1e-6)
    distance.backward()
    gradients = {
        name
        for name, parameter in case.compressed.named_parameters()
        if parameter.grad is not None and parameter.grad.abs().max() > 0
    }
    assert {"blocks.0.mlp.fc1.blkdiag1", "blocks.1.mlp.fc2.blkdiag2"} <= gradients


def test_feature_distillation_adds_the_classes_and_the_features(case: Case) -> None:
    images, targets = case.images[:4], torch.tensor([0, 3, 5, 1])
    with torch.no_grad():
        objective = FeatureDistillation(case.dense, RECIPE, 2.0, 0.25, BLOCKS, feature_weight=0.5)
        loss = float(objective(case.compressed, images, targets))
        p = F.softmax(case.dense(images).double() / 2, -1)
        q = F.softmax(case.compressed(images).double() / 2, -1)
        kl = 4 * float((p * (p.log() - q.log())).sum(-1).mean())
        hard = float(F.cross_entropy(case.compressed(images).double(), targets))
        dense, own = stages(case.dense, images), stages(case.compressed, images)
        features = sum(error(own[k], dense[k]) for k in (1, 2)) / 2
        assert loss == pytest.approx(0.75 * kl + 0.25 * hard + 0.5 * features, rel=1e-4)
        without_labels = float(objective(case.compressed, images, None))
        assert without_labels == pytest.approx(kl + 0.5 * features, rel=1e-4)
        plain = Distillation(case.dense, RECIPE, 2.0, 0.25)
        assert float(plain(case.compressed, images, targets)) == pytest.approx(0.75 * kl + 0.25 * hard, rel=1e-4)
        classes_alone = replace(objective, feature_weight=0.0)
        assert float(classes_alone(case.compressed, images, None)) == pytest.approx(kl, rel=1e-4)


def test_both_models_see_the_same_mixed_images(case: Case) -> None:
    recipe = replace(RECIPE, mixup=0.5)
    images = case.images[:4]
    with torch.no_grad():
        torch.manual_seed(11)
        loss = float(FeatureDistillation(case.dense, recipe, blocks=BLOCKS)(case.compressed, images, None))
        torch.manual_seed(11)
        mixed = mix(images, 0.5, 0.0).images
        plain = float(FeatureDistillation(case.dense, RECIPE, blocks=BLOCKS)(case.compressed, mixed, None))
    assert not torch.equal(mixed, images)
    assert loss == plain


def test_only_tokens_that_never_merge_are_compared(case: Case) -> None:
    student = apply_token_plan(copy.deepcopy(case.dense), TokenPlan(TokenMerging(0, 1, 0.3), True))
    names = block_names(student)
    assert names == ("blocks.0", "blocks.1")
    with intermediates(student, names) as own, intermediates(case.dense, names) as dense:
        student(case.images[:2])
        case.dense(case.images[:2])
    assert [own[name].shape[1] for name in names] == [1, 1]
    wanted = F.layer_norm(dense["blocks.1"][:, :1], (32,))
    found = F.layer_norm(own["blocks.1"], (32,))
    torch.testing.assert_close(feature_error(own["blocks.1"], dense["blocks.1"]), (wanted - found).square().mean())


def test_all_tokens_of_cells_that_merge_are_compared(tiny_vitae: dict[str, Any]) -> None:
    dense = create_model("vitae_basic", num_classes=5, **tiny_vitae)
    student = apply_token_plan(copy.deepcopy(dense), TokenPlan(TokenMerging(0, 1, 0.3)))
    names, images = block_names(student), torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert names == block_names(dense)
    with torch.no_grad(), intermediates(student, names) as own, intermediates(dense, names) as wanted:
        student(images)
        dense(images)
    assert [own[name].shape for name in names] == [wanted[name].shape for name in names]
    assert float(feature_error(own[names[-1]], wanted[names[-1]])) == pytest.approx(
        error(own[names[-1]], wanted[names[-1]]), rel=1e-4
    )
    assert error(own[names[-1]], wanted[names[-1]]) > 0
