"""The plain forms of structured layers compute what the layers do; what is transposed is counted."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from milkweed.kernels.packing import pack_monarch
from milkweed.kernels.reference import monarch_reference
from milkweed.models.architectures.vitae.attention import Mlp
from milkweed.models.layers.blockdiag import BlockdiagLinear
from milkweed.models.layers.monarch import MonarchLinear
from milkweed.models.layers.structured import StructuredLinear
from milkweed.models.onnx.plain import PlainBlockdiag, PlainMonarch, PlainMonarchMlp, plain_form

NUMBERS = torch.float64


@dataclass(frozen=True)
class Factors:
    """The sizes of a Monarch matrix's factors: K blocks of (q, p), then J of (s, r)."""

    K: int
    q: int
    p: int
    J: int
    s: int

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        r = self.K * self.q // self.J
        return torch.randn(self.K, self.q, self.p, dtype=NUMBERS), torch.randn(self.J, self.s, r, dtype=NUMBERS)


@pytest.mark.parametrize(
    "factors",
    [
        Factors(4, 12, 12, 4, 48),  # fly's, rank 3
        Factors(4, 49, 49, 4, 64),  # 196 tokens: ranks of 12 and 13
        Factors(8, 4, 32, 8, 4),  # q < J: some pairs have no rank
        Factors(3, 4, 5, 2, 7),  # K != J
        Factors(1, 6, 10, 1, 9),  # low rank
    ],
)
def test_folded_factors_multiply_to_the_matrix(factors: Factors) -> None:
    w1, w2 = factors.tensors
    x = torch.randn(3, 5, factors.K * factors.p, dtype=NUMBERS)
    layer = PlainMonarch(pack_monarch(w1, w2))
    torch.testing.assert_close(layer(x), monarch_reference(x, w1, w2), rtol=0, atol=1e-12)


@pytest.mark.parametrize("layer", [(30, 50), (50, 30), (32, 64)])
@pytest.mark.parametrize("bias", [True, False])
def test_padded_widths_and_biases_compute_the_same(layer: tuple[int, int], bias: bool) -> None:
    torch.manual_seed(0)
    monarch = MonarchLinear(*layer, bias=bias, nblocks=4, dtype=NUMBERS)
    plain = PlainMonarch(
        pack_monarch(*monarch.monarch_factors(), monarch.bias, in_features=layer[0], out_features=layer[1])
    )
    x = torch.randn(2, 3, layer[0], dtype=NUMBERS)
    torch.testing.assert_close(plain(x), F.linear(x, monarch.dense_weight(), monarch.bias), rtol=0, atol=1e-12)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("width", "out", "nblocks"), [(32, 64, 4), (30, 50, 4), (48, 12, 3), (64, 64, 8)])
def test_block_diagonal_layers_compute_the_same(width: int, out: int, nblocks: int, shuffle: bool) -> None:
    torch.manual_seed(0)
    layer = BlockdiagLinear(width, out, nblocks=nblocks, shuffle=shuffle, dtype=NUMBERS)
    plain = PlainBlockdiag(layer)
    assert plain.folded == (shuffle and -(-width // nblocks) % nblocks == 0)
    x = torch.randn(2, 3, width, dtype=NUMBERS)
    torch.testing.assert_close(plain(x), F.linear(x, layer.dense_weight(), layer.bias), rtol=0, atol=1e-12)


def monarch_mlp(width: int, hidden: int, nblocks: tuple[int, int]) -> nn.Module:
    mlp = Mlp(width, hidden)
    mlp.fc1 = MonarchLinear(width, hidden, nblocks=nblocks[0])
    mlp.fc2 = MonarchLinear(hidden, width, nblocks=nblocks[1])
    return mlp


@pytest.mark.parametrize(
    ("width", "hidden", "nblocks", "fused"),
    [
        (16, 64, (4, 4), True),
        (16, 64, (2, 8), True),
        (18, 70, (4, 4), False),  # padded
        (16, 24, (4, 8), False),  # six outputs of a block, eight chunks
    ],
)
def test_an_mlp_is_fused_where_nothing_is_padded(
    width: int, hidden: int, nblocks: tuple[int, int], fused: bool
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(monarch_mlp(width, hidden, nblocks)).eval()
    x = torch.randn(2, 5, width)
    dense = [F.linear, model[0].fc1, model[0].fc2]
    with torch.inference_mode():
        hidden_units = F.gelu(_dense(dense[1], x))
        expected = _dense(dense[2], hidden_units)
        plain = plain_form(model, torch.float32)
        torch.testing.assert_close(plain(x), expected, rtol=0, atol=1e-5)
    assert any(isinstance(module, PlainMonarchMlp) for module in plain.modules()) == fused


def _dense(layer: StructuredLinear, x: Tensor) -> Tensor:
    return F.linear(
        x.double(), layer.dense_weight().double(), None if layer.bias is None else layer.bias.double()
    ).float()
