"""What a layer costs: weights and multiply-accumulates, counted by hand."""

from torch import nn

from milkweed.compress.structure.costs import layer_costs
from milkweed.models.layers.layer_spec import LayerSpec

NAMES = ["blocks.0.mlp.fc1", "blocks.1.attn.proj"]
HALF = LayerSpec("monarch", 32, 128, nblocks=4, rank=3)


def test_weights(vit: nn.Module) -> None:
    found = layer_costs(vit, NAMES, "parameters", 32)
    assert found(NAMES[0], None) == 32 * 128
    assert found(NAMES[1], None) == 32 * 32
    assert found(NAMES[0], HALF) == 4 * 12 * 8 + 4 * 32 * 12 == HALF.weight_count


def test_multiply_accumulates_are_for_all_tokens_of_an_image(vit: nn.Module) -> None:
    found = layer_costs(vit, NAMES, "macs", 32)
    assert found(NAMES[0], None) == 17 * 32 * 128  # 16 patches and the class token
    assert found(NAMES[0], HALF) == 17 * HALF.weight_count
