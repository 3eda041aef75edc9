"""The structured layers are their dense equivalents; fly's own values are in importing/test_foreign_layers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from milkweed.models.layers.blockdiag import BlockdiagLinear
from milkweed.models.layers.layer_spec import LayerSpec
from milkweed.models.layers.lowrank import LowRankLinear
from milkweed.models.layers.monarch import MonarchLinear
from milkweed.models.layers.pixelfly import PixelflyLinear
from milkweed.models.layers.select import build_layer, layer_spec_of
from milkweed.models.layers.shapes import ButterflyShape
from milkweed.models.layers.structured import StructuredLinear

Arrays = dict[str, np.ndarray]

LAYERS: list[StructuredLinear] = [
    MonarchLinear(30, 50, nblocks=4),
    LowRankLinear(30, 50, rank=7),
    BlockdiagLinear(30, 50, nblocks=4),
    BlockdiagLinear(50, 30, nblocks=7, shuffle=True),
    PixelflyLinear(30, 50, rank=3, block_size=4, butterfly_size=4, n_factors=1, gating=False),
    PixelflyLinear(48, 96, rank=5, block_size=8, butterfly_size=16, gating=False),  # a cell is 1/2 and 3/4 of a block
    PixelflyLinear(30, 50, rank=0, block_size=4, butterfly_size=4, gating=False, global_size=5),
    # block-diagonal, and low rank
    PixelflyLinear(36, 60, rank=2, block_size=6, butterfly_size=3, n_factors=0, gating=False),
    *(MonarchLinear(*widths) for widths in ((70, 50), (197, 197), (16, 64))),
]
GATED = PixelflyLinear(32, 64, rank=8, block_size=4, butterfly_size=8)
MONARCH = {"kind": "monarch", "nblocks": 4, "rank": None, "bias": True}
IDS = [f"{layer.kind} {layer.in_features} {layer.out_features} {layer_spec_of(layer).rank}" for layer in LAYERS]


@pytest.fixture(scope="module")
def golden(shared: Path) -> Arrays:
    with np.load(shared / "golden" / "fly_pixelfly.npz") as data:
        return dict(data)


def filled(layer: nn.Module) -> nn.Module:
    """A copy in float64 with weights that every mistake would show in."""
    torch.manual_seed(0)
    twin = build_layer(layer_spec_of(layer), dtype=torch.float64)
    for parameter in twin.parameters():
        nn.init.normal_(parameter)
    return twin


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("bs16_nf2_b32_2048x512", (512, 2048, 32, 16, 2)),
        ("bs16_nf2_b32_512x2048", (2048, 512, 32, 16, 2)),
        ("bs16_nf2_b32_768x768", (768, 768, 32, 16, 2)),
        ("bs16_nf2_b32_2304x768", (768, 2304, 32, 16, 2)),
        ("bs8_nf2_b32_2048x512", (512, 2048, 32, 8, 2)),
        ("bs4_nf2_b4_16x16", (16, 16, 4, 4, 2)),
        ("bs8_nf3_b4_32x32", (32, 32, 4, 8, 3)),
        ("bs8_nf2_b4_32x64", (64, 32, 4, 8, 2)),
    ],
)
def test_layouts_are_flys(golden: Arrays, name: str, sizes: tuple[int, ...]) -> None:
    layout = ButterflyShape.of(*sizes).layout()
    assert torch.equal(layout, torch.from_numpy(golden[f"layout/{name}"]).bool())


@pytest.mark.parametrize("layer", LAYERS, ids=IDS)
@torch.no_grad()
def test_forward_is_the_dense_equivalent(layer: StructuredLinear) -> None:
    twin = filled(layer)
    x = torch.randn(2, 5, layer.in_features, dtype=torch.float64)
    dense = twin.dense_weight()
    assert dense.shape == (layer.out_features, layer.in_features)
    torch.testing.assert_close(twin(x), F.linear(x, dense, twin.bias), rtol=1e-10, atol=1e-10)
    empty = twin(x[:0])
    assert empty.shape == (0, 5, layer.out_features)


@pytest.mark.parametrize("layer", LAYERS, ids=IDS)
def test_gradients_are_those_of_the_dense_equivalent(layer: StructuredLinear) -> None:
    twin = filled(layer)
    x = torch.randn(3, layer.in_features, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(3, layer.out_features, dtype=torch.float64)
    wanted = [x, *twin.parameters()]
    got = torch.autograd.grad((twin(x) * upstream).sum(), wanted)
    want = torch.autograd.grad((F.linear(x, twin.dense_weight(), twin.bias) * upstream).sum(), wanted)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("layer", [*LAYERS, GATED])
def test_a_layer_spec_builds_the_same_layer_again(layer: StructuredLinear) -> None:
    spec = layer_spec_of(layer)
    assert spec.kind == layer.kind
    assert LayerSpec.from_dict(spec.to_dict()) == spec
    twin = build_layer(spec, dtype=torch.float64)
    assert type(twin) is type(layer)
    assert {key: tuple(tensor.shape) for key, tensor in twin.state_dict().items()} == {
        key: tuple(tensor.shape) for key, tensor in layer.state_dict().items()
    }
    assert next(iter(layer.state_dict())) == "bias"
    assert spec.weight_count == layer.weight_count
    assert layer.weight_count == sum(p.numel() for p in layer.parameters()) - layer.out_features
    assert spec.weight_shapes() == {
        key: tuple(tensor.shape) for key, tensor in layer.state_dict().items() if key != "bias"
    }


@pytest.mark.parametrize("layer", [LAYERS[0], LAYERS[1]])
def test_only_monarch_and_low_rank_layers_have_monarch_factors(layer: StructuredLinear) -> None:
    factors = layer.monarch_factors()
    assert factors is not None
    as_monarch = MonarchLinear(layer.in_features, layer.out_features, nblocks=len(factors[0]), rank=None)
    as_monarch.blkdiag1, as_monarch.blkdiag2 = (nn.Parameter(factor.detach()) for factor in factors)
    torch.testing.assert_close(as_monarch.dense_weight(), layer.dense_weight())
    assert all(other.monarch_factors() is None for other in LAYERS[2:] if not isinstance(other, MonarchLinear))


@torch.no_grad()
def test_a_gated_layer_is_dense_only_where_its_gate_is_constant() -> None:
    layer = PixelflyLinear(32, 64, rank=8, block_size=4, butterfly_size=8, dtype=torch.float64)
    with pytest.raises(ValueError, match="gate depends on the input is not linear"):
        layer.dense_weight()
    layer.gate.weight.zero_()
    layer.gate.bias.fill_(1.3)
    x = torch.randn(3, 32, dtype=torch.float64)
    torch.testing.assert_close(layer(x), F.linear(x, layer.dense_weight(), layer.bias), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "lowrank"}, "rank None: a lowrank structure needs a rank"),
        ({"kind": "lowrank", "rank": 9}, "rank 9 must be between 1 and 8, the smaller width"),
        ({"kind": "pixelfly", "block_size": 4, "butterfly_size": 4}, "rank None: a pixelfly structure needs a rank"),
        ({"kind": "pixelfly", "rank": 2, "block_size": 3, "butterfly_size": 4}, "divide the padded widths: 9 it does"),
        (
            {"kind": "pixelfly", "rank": 0, "block_size": 4, "butterfly_size": 2, "n_factors": 1},
            "gating true: rank 0 leaves nothing to mix",
        ),
        (
            {"kind": "pixelfly", "rank": 2, "block_size": 1, "butterfly_size": 2, "n_factors": 1, "in_features": 2**21},
            "block_size 1 and butterfly_size 2 cut 16 x 2097152 into 33554432 cells: at most 4194304",
        ),
        (
            {
                "kind": "pixelfly",
                "rank": 2,
                "block_size": 2**20,
                "butterfly_size": 2**20,
                "in_features": 2**20,
                "out_features": 2**20,
            },
            "1099511627776 cells: at most",
        ),
        ({"kind": ["pixelfly"]}, "structure kind ['pixelfly'] is unknown: must be one of monarch, lowrank, blockdiag"),
        ({"kind": "magic"}, "'magic' is unknown: must be one of monarch"),
        (
            {**MONARCH, "kind": "pixelfly"},
            "must have bias, block_size, butterfly_size, gating, global_size",
        ),
        ({**MONARCH, "kind": "lowrank"}, "must have bias, in_features, kind, out_features, rank, not"),
        ({**MONARCH, "extra": 1}, "must have bias, in_features"),
        ({**MONARCH, "nblocks": 0}, "nblocks 0 must be between 1 and 8"),
        ({**MONARCH, "nblocks": 9}, "nblocks 9 must be between 1 and 8"),
        ({**MONARCH, "nblocks": "4"}, "nblocks '4' must be a whole number"),
        ({**MONARCH, "nblocks": True}, "nblocks True must be a whole number"),
        ({**MONARCH, "rank": 5}, "rank 5 must be between 1 and 2"),
        ({**MONARCH, "in_features": -3}, "in_features -3"),
        ({**MONARCH, "in_features": 0}, "in_features 0 and out_features 16 must be at least 1"),
        ({**MONARCH, "bias": 1}, "bias 1 must be true or false"),
    ],
)
def test_bad_options_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        LayerSpec.from_dict({"in_features": 8, "out_features": 16, **values})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "option"), [("lowrank", {"nblocks": 2}), ("monarch", {"shuffle": True}), ("blockdiag", {"rank": 3})]
)
def test_an_option_of_another_kind_is_refused(kind: str, option: dict[str, int]) -> None:
    needed = {"rank": 2} if kind == "lowrank" else {}
    with pytest.raises(ValueError, match=f"a {kind} structure has no such option"):
        LayerSpec(kind, 8, 16, **{**needed, **option})
