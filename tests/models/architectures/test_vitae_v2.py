"""ViTAEv2: windows of any grid by their definition, image sizes, and checkpoints without the unused buffer."""

import pytest
import torch
from torch import Tensor, nn

from milkweed.models.architectures.registry import create_model, default_preprocess
from milkweed.models.architectures.vitae.attention import WindowAttention
from milkweed.models.importing.fitting import fit_checkpoint

from ..tiny import TINY_VITAE_V2

TINY = {"num_classes": 5, **TINY_VITAE_V2}


def tiny() -> nn.Module:
    torch.manual_seed(0)
    model = create_model("vitaev2_s", **TINY)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    return model


def attention_by_definition(layer: WindowAttention, tokens: Tensor) -> Tensor:
    """One image's tokens (N, in_dim), query by query in float64; a key outside the grid is what zeros give."""
    layer = layer.double()
    tokens = tokens.double()
    side, window, heads = round(len(tokens) ** 0.5), layer.window_size, layer.num_heads
    extended = next(size for size in range(side, side + window) if size % window == 0)
    before = (extended - side) // 2
    out = torch.empty(len(tokens), layer.proj.out_features, dtype=torch.float64)
    for row in range(side):
        for column in range(side):
            top, left = ((at + before) // window * window - before for at in (row, column))
            keys = []
            for y in range(top, top + window):
                for x in range(left, left + window):
                    inside = 0 <= y < side and 0 <= x < side
                    keys.append(tokens[y * side + x] if inside else torch.zeros_like(tokens[0]))
            _, k, v = (part.unflatten(-1, (heads, -1)) for part in layer.qkv(torch.stack(keys)).chunk(3, -1))
            q = layer.qkv(tokens[row * side + column]).chunk(3)[0].unflatten(-1, (heads, -1))
            weights = torch.einsum("hd,nhd->hn", q, k / q.shape[-1] ** 0.5).softmax(-1)
            out[row * side + column] = layer.proj(torch.einsum("hn,nhd->hd", weights, v).flatten())
    return out


@pytest.mark.parametrize("side", [1, 4, 7, 10, 14, 15])
def test_windows_of_a_grid_of_any_side_follow_the_definition(side: int) -> None:
    torch.manual_seed(side)
    layer = WindowAttention(6, 8, 2)
    nn.init.normal_(layer.qkv.bias)  # what a padded key consists of
    x = torch.randn(2, side * side, 6)
    with torch.inference_mode():
        got = layer(x)
        want = torch.stack([attention_by_definition(layer, image) for image in x])
    assert (got.double() - want).abs().max() < 1e-6


def test_every_square_size_runs_with_the_same_tensors() -> None:
    small = tiny()
    for size in (32, 44, 64, 35):
        large = create_model("vitaev2_s", **{**TINY, "img_size": size})
        large.load_state_dict(small.state_dict())
        image = torch.randn(1, 3, size, size)
        with torch.inference_mode():
            assert torch.equal(large(image), small(image))
    assert default_preprocess("vitaev2_s", img_size=44)["size"] == 44


def test_images_that_are_not_square_or_do_not_halve_are_refused() -> None:
    model = tiny()
    for height, width in ((32, 36), (33, 33), (34, 34)):
        with pytest.raises(ValueError, match=f"image {height}x{width}: ViTAEv2 takes square images of 4n or 4n - 1 px"):
            model(torch.zeros(1, 3, height, width))
    with pytest.raises(ValueError, match="image 226x226"):
        create_model("vitaev2_s", img_size=226)


def test_a_checkpoint_without_the_index_fits() -> None:
    model = tiny()
    state = {key: value for key, value in model.state_dict().items() if "relative_position_index" not in key}
    arguments = {name: value for name, value in TINY.items() if name != "num_classes"}
    fitted = fit_checkpoint("file", state, "vitaev2_s", None, arguments)
    image = torch.randn(1, 3, 32, 32)
    with torch.inference_mode():
        assert torch.equal(fitted.model(image), model(image))
    assert any("filled in 4 integer buffers" in note for note in fitted.notes)
