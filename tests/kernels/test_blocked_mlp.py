"""The packing of the fused MLP against the composition of the definition of its layers, in float64."""

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from milkweed.kernels.blocked_mlp import Layer, block_mlp, mlp_reference, mlp_refusal, tile_refusal
from milkweed.kernels.reference import monarch_reference
from milkweed.kernels.shapes import MonarchShape

SHAPES = [(192, 768), (256, 512), (256, 1024), (320, 640), (384, 1152), (384, 1536)]


def make_layer(nblocks: int, features: int, outputs: int, rank: int | None, seed: int, bias: bool = True) -> Layer:
    """fly's shapes, or an explicit rank of each block; values of variance 1 in, about 1 out."""
    g = torch.Generator().manual_seed(seed)
    p, s = features // nblocks, outputs // nblocks
    q = min(p, s) if rank is None else rank
    w1 = torch.randn(nblocks, q, p, generator=g, dtype=torch.float64) / p**0.5
    w2 = torch.randn(nblocks, s, q, generator=g, dtype=torch.float64) / q**0.5
    return w1, w2, torch.randn(outputs, generator=g, dtype=torch.float64) if bias else None


def make_mlp(
    nblocks: int, width: int, hidden: int, ranks: tuple[int | None, int | None] = (None, None), bias: bool = True
) -> list[Layer]:
    return [
        make_layer(nblocks, width, hidden, ranks[0], seed=width + nblocks, bias=bias),
        make_layer(nblocks, hidden, width, ranks[1], seed=hidden + nblocks, bias=bias),
    ]


def refusal(fc1: Layer, fc2: Layer, dtype: torch.dtype, features: tuple[int, int] | None = None) -> str | None:
    return mlp_refusal(MonarchShape.of(*fc1[:2]), MonarchShape.of(*fc2[:2]), dtype, features)


def definition(x: Tensor, fc1: Layer, fc2: Layer) -> Tensor:
    def linear(x: Tensor, layer: Layer) -> Tensor:
        y = monarch_reference(x, *layer[:2])
        return y if layer[2] is None else y + layer[2]

    return linear(F.gelu(linear(x, fc1)), fc2)


NO_RANKS = (None, None)
CASES = [
    *((width, hidden, NO_RANKS, True) for width, hidden in SHAPES),
    (256, 512, (32, 64), True),
    (256, 512, (5, 3), True),  # what a block hands on differs from block to block
    (384, 1152, (96, 50), True),
    (192, 252, (7, 48), True),  # hidden blocks of 63 columns: 16 or 15 for each reader
    (64, 48, (1, 2), True),
    (64, 128, NO_RANKS, False),
]


@pytest.mark.parametrize(("width", "hidden", "ranks", "bias"), CASES)
def test_packed_mlp_is_its_two_layers(
    width: int, hidden: int, ranks: tuple[int | None, int | None], bias: bool
) -> None:
    """Without a norm, and with one and a residual: the norm comes first and leaves the residual."""
    fc1, fc2 = make_mlp(4, width, hidden, ranks, bias)
    assert refusal(fc1, fc2, torch.bfloat16) is None
    g = torch.Generator().manual_seed(1)
    x, weight, shift = (torch.randn(*n, dtype=torch.float64, generator=g) for n in ((5, width), (width,), (width,)))
    packed = block_mlp(fc1, fc2, torch.float64)
    close = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)
    close(mlp_reference(x, packed), definition(x, fc1, fc2))
    normed = F.layer_norm(x, (width,), weight, shift, 1e-6)
    close(mlp_reference(x, packed, x, (weight, shift, 1e-6)), x + definition(normed, fc1, fc2))


def test_packing_costs_only_what_padding_adds() -> None:
    # 384-1536, nblocks 4: no padding at all, so as many numbers as in the factors.
    fc1, fc2 = make_mlp(4, 384, 1536)
    packed = block_mlp(fc1, fc2, torch.bfloat16)
    assert sum(t.numel() for t in packed.tensors[:3]) == sum(w.numel() for layer in (fc1, fc2) for w in layer[:2])
    assert packed.factor1.dtype == packed.stream.dtype == packed.factor2.dtype == torch.bfloat16
    assert packed.bias1.dtype == packed.bias2.dtype == torch.float32
    assert all(t.is_contiguous() for t in packed.tensors)
    assert (packed.block_width, packed.width) == (96, 384)


def test_refusals_say_why() -> None:
    fc1, fc2 = make_mlp(4, 192, 768)
    assert refusal(fc1, fc2, torch.float32) == "fused MLP: torch.float32, not bfloat16 or float16"
    cases = [
        (make_mlp(4, 768, 3072), "width 768 with ranks 192 and 192 is more than 96"),
        (make_mlp(4, 48, 96), "blocks of 12 features, not a multiple of 8"),
        *((make_mlp(n, 192, 768), f"nblocks {n}, {n}, {n}, {n}; all must be 4") for n in (1, 2, 3, 8)),
        ([fc1, make_layer(2, 768, 192, None, 1)], "nblocks 4, 4, 2, 2"),
        ([fc1, make_layer(4, 512, 192, None, 1)], "192-768 and 512-192 features do not close"),
        (make_mlp(4, 256, 512, (100, 64)), "width 256 with ranks 100 and 64 is more than 96"),
    ]
    for (first, second), reason in cases:
        assert reason in str(refusal(first, second, torch.float16))
        with pytest.raises(ValueError, match="fused MLP"):
            block_mlp(first, second, torch.float16)
    assert "190-768 features in factors of 192-768" in str(refusal(fc1, fc2, torch.float16, (190, 768)))
    with pytest.raises(ValueError, match=r"bias of shape \(5,\): the layer has 768 outputs"):
        block_mlp((*fc1[:2], torch.zeros(5)), fc2, torch.float16)


def test_tiles_that_do_not_exist_or_fit_are_refused() -> None:
    assert tile_refusal(96, 3, 227 * 1024) is None
    assert tile_refusal(96, 0, 99 * 1024) is None
    needs = "fused MLP: tile 3 needs 225536 bytes of shared memory, the device has 166912"
    assert tile_refusal(96, 3, 163 * 1024) == needs
    assert tile_refusal(64, 1, 227 * 1024) == "fused MLP: no tile 1 for block width 64"
