"""The embedding beside the logits, against what timm's own models give before their classifiers."""

import copy
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from milkweed.models.architectures.no_classifier import classifier_name
from milkweed.models.architectures.registry import create_model
from milkweed.models.serving.embedding import return_embedding
from milkweed.models.serving.prepare import prepare_for_inference

from ..small_models import build

TIMM: dict[str, dict[str, Any]] = {
    "deit_tiny_patch16_224": {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 48},
    "vit_small_patch14_dinov2": {"img_size": 28, "depth": 1, "embed_dim": 48},
    "resnet18": {},
    "mobilenetv3_small_050": {},
    "mixer_s32_224": {"img_size": 64},
}


def images(size: int, count: int = 2) -> Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", TIMM)
def test_it_is_timms_pre_logits(name: str) -> None:
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5, **TIMM[name]).eval()
    x = images(TIMM[name].get("img_size", 64))
    with torch.inference_mode():
        logits, expected = model(x), model.forward_head(model.forward_features(x), pre_logits=True)
        width = return_embedding(model, classifier_name(model), 5, x[:1])
        outputs = model(x)
    assert width == expected.shape[1]
    torch.testing.assert_close(outputs, torch.cat([expected, logits], 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["vitae", "t2t", "v2"])
def test_it_is_what_our_own_architectures_features_are(kind: str) -> None:
    model = build(kind).eval()
    served, name = prepare_for_inference(copy.deepcopy(model)), classifier_name(model)
    x = images(32)
    with torch.inference_mode():
        expected, logits = model.forward_features(x), model(x)
        width = return_embedding(served, name, logits.shape[1], x[:1])
        outputs = served(x)
    assert width == expected.shape[1]
    torch.testing.assert_close(outputs, torch.cat([expected, logits], 1), rtol=1e-4, atol=1e-4)


class Doubled(nn.Module):
    """A model that does more with what its classifier gives."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x.mean((2, 3)))
        return (logits + logits.flip(1)).reshape(-1, 2, 4 if logits.shape[1] > 4 else 2)[:, 0]


def test_a_model_that_does_more_with_its_logits_has_none_and_stays_as_it_was() -> None:
    model, x = Doubled(), images(8, 1)
    with torch.inference_mode():
        before = model(x)
        assert return_embedding(model, "head", 2, x) == 0
        assert torch.equal(model(x), before)
    assert isinstance(model.head, nn.Linear)


def test_two_classifiers_are_none() -> None:
    distilled = create_model("deit_tiny_distilled_patch16_224", num_classes=5, img_size=32, depth=1)
    assert classifier_name(distilled) is None
    assert return_embedding(distilled, None, 5, images(32, 1)) == 0
    assert distilled.eval()(images(32)).shape == (2, 5)
