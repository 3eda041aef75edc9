"""A model without its classifier gives what that would read, as timm's models of no classes do."""

import pytest
import timm
import torch

from milkweed.models.architectures.no_classifier import NoClassifier
from milkweed.models.architectures.registry import create_model, embedding_width

CASES = {
    "vit_tiny_patch16_224": (192, {"img_size": 32, "depth": 1}),
    "convnext_atto": (320, {}),
    "resnet18": (512, {}),
    "vit_base_patch16_siglip_224": (192, {"img_size": 32, "depth": 1, "embed_dim": 192, "num_heads": 3}),
}


@pytest.mark.parametrize("arch", CASES)
def test_it_gives_what_timms_model_of_no_classes_gives(arch: str) -> None:
    width, args = CASES[arch]
    model = create_model(arch, num_classes=width, classifier=False, **args)
    reference = timm.create_model(arch, num_classes=0, **args).eval()
    reference.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(model(x), reference(x))
    assert embedding_width(arch, args) == width
    assert [type(part).__name__ for part in model.modules()].count("NoClassifier") == 1
    assert repr(NoClassifier(3)) == "NoClassifier(3)"


@pytest.mark.parametrize(
    ("arch", "args", "message"),
    [
        ("vit_tiny_patch16_224", {"num_classes": 10}, "without a classifier it gives 192 values, num_classes is 10$"),
        ("vit_tiny_patch16_224", {"classifier": "no"}, "classifier 'no' must be true or false$"),
        ("deit_tiny_distilled_patch16_224", {"num_classes": 192}, "no classifier that is one linear layer"),
        (
            "vit_tiny_patch16_224",
            {"num_classes": 384, "global_pool": "token_avg"},
            "is a TokenAvgHead, which pools too",
        ),
    ],
)
def test_what_cannot_be_left_out_is_named(arch: str, args: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_model(arch, **{"classifier": False, **args})  # type: ignore[arg-type]
    if "global_pool" not in args and "distilled" in arch:
        with pytest.raises(ValueError, match=message):
            embedding_width(arch, {})
