"""T2T-ViT: its positions by their formula, tokens by hand, and sizes."""

from math import cos, sin
from typing import Any

import pytest
import torch
from torch import Tensor

from milkweed.models.architectures.registry import create_model, default_preprocess
from milkweed.models.architectures.t2t_vit import sinusoid

TINY: dict[str, Any] = {"num_classes": 5, "img_size": 32, "embed_dim": 16, "depth": 1, "num_heads": 2}


def test_positions_are_the_sinusoid_and_frozen() -> None:
    got = sinusoid(5, 6)[0].tolist()
    for position in range(5):
        for j in range(6):
            angle = position / 10000 ** (2 * (j // 2) / 6)
            assert got[position][j] == pytest.approx((cos if j % 2 else sin)(angle), abs=1e-7)
    model = create_model("t2t_vit_7", **TINY)
    assert torch.equal(model.pos_embed, sinusoid(5, 16))
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    attentions = {f"tokens_to_token.attention{i}.w" for i in (1, 2)}
    assert frozen == {"pos_embed", *attentions}


def test_tokens_are_overlapping_patches() -> None:
    """The first attention sees patches of 7 px at steps of 4, padded by 2, pixels of a channel together."""
    model = create_model("t2t_vit_7", **TINY)
    seen: list[Tensor] = []
    model.tokens_to_token.attention1.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    image = torch.randn(1, 3, 32, 32)
    with torch.inference_mode():
        model(image)
    row, column, channel = 3, 5, 2
    patch = image[0, channel, 4 * row - 2 : 4 * row + 5, 4 * column - 2 : 4 * column + 5]
    assert seen[0].shape == (1, 64, 147)
    assert torch.equal(seen[0][0, 8 * row + column, 98:], patch.flatten())


def test_sizes_must_be_the_models_own() -> None:
    assert default_preprocess("t2t_vit_7", img_size=64)["size"] == 64
    with torch.inference_mode():
        assert create_model("t2t_vit_t_14", **{**TINY, "img_size": 64})(torch.zeros(2, 3, 64, 64)).shape == (2, 5)
        with pytest.raises(ValueError, match=r"image \(64, 64\): this model takes 32x32 only"):
            create_model("t2t_vit_7", **TINY)(torch.zeros(1, 3, 64, 64))
