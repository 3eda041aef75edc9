"""ViTAE v1 follows the performer's definition, takes the sizes it should, and names wrong configurations."""

import pytest
import torch
from torch import Tensor

from milkweed.models.architectures.vitae import VITAE_VARIANTS, ViTAE
from milkweed.models.architectures.vitae.attention import attend
from milkweed.models.architectures.vitae.reduction import PerformerAttention


def performer_by_definition(layer: PerformerAttention, x: Tensor, epsilon: float) -> Tensor:
    """The attention of one image, token by token in float64: features, sums, quotient, projection, value skip."""
    layer = layer.double()
    x = x.double()
    n, m, dim = len(x), layer.w.shape[0], layer.w.shape[1]
    kqv = layer.kqv(layer.norm1(x))
    k, q, v = kqv[:, :dim], kqv[:, dim : 2 * dim], kqv[:, 2 * dim :]

    def phi(t: Tensor) -> Tensor:
        return torch.stack([torch.exp(row @ t - t @ t / 2) for row in layer.w]) / m**0.5

    keys, queries = [phi(t) for t in k], [phi(t) for t in q]
    out = []
    for i in range(n):
        numerator = sum((queries[i] @ keys[j]) * v[j] for j in range(n))
        denominator = sum(queries[i] @ keys[j] for j in range(n)) + epsilon
        out.append(v[i] + layer.proj(numerator / denominator))
    return torch.stack(out)


def performer_with_small_features() -> tuple[PerformerAttention, Tensor]:
    """|t|^2/2 around 9, so that the denominators are around 1e-8 and epsilon and 1/sqrt(m) show."""
    g = torch.Generator().manual_seed(0)
    layer = PerformerAttention(12, 16)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.randn(p.shape, generator=g) * 0.3)
        layer.norm1.weight.fill_(1)
        layer.w.mul_(0.1)
    return layer.eval(), torch.randn(5, 12, generator=g)


def test_performer_follows_its_definition_where_denominators_vanish() -> None:
    layer, x = performer_with_small_features()
    with torch.inference_mode():
        got = layer.attend(x[None])[0].double()
        want = performer_by_definition(layer, x, 1e-8)
        without_epsilon = performer_by_definition(layer, x, 0.0)
    assert (got - want).abs().max() <= 1e-4
    # The trap, planted: the two definitions are far apart here, so the line above sees a wrong epsilon.
    assert (without_epsilon - want).abs().max() > 1e-2


def test_square_images_of_any_size_run_where_there_is_no_position_embedding() -> None:
    model = ViTAE(**VITAE_VARIANTS["vitae_basic_tiny"], num_classes=3).eval()
    with torch.inference_mode():
        assert model(torch.zeros(1, 3, 192, 192)).shape == (1, 3)
        with pytest.raises(ValueError, match="do not form a square grid"):
            model(torch.zeros(1, 3, 192, 224))


def test_base_refuses_another_size() -> None:
    with torch.device("meta"):
        model = ViTAE(**VITAE_VARIANTS["vitae_basic_base"])
        with pytest.raises(ValueError, match=r"image \(192, 192\): this model takes 224x224 only"):
            model(torch.zeros(1, 3, 192, 192))


@pytest.mark.parametrize("masked", [False, True])
def test_attention_that_learns_in_bfloat16_follows_its_definition(masked: bool) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 9, 8, dtype=torch.bfloat16).requires_grad_() for _ in range(3))
    mask = torch.randn(9, 9).bfloat16() if masked else None
    exact = [t.detach().double().requires_grad_() for t in (q, k, v)]
    scores = exact[0] @ exact[1].transpose(-2, -1) * 0.3 + (0 if mask is None else mask.double())
    answer, expected = attend(q, k, v, 0.3, mask), scores.softmax(-1) @ exact[2]
    assert answer.dtype == torch.bfloat16
    grads = torch.autograd.grad(answer.float().square().sum(), (q, k, v))
    expected_grads = torch.autograd.grad(expected.square().sum(), exact)
    for value, exact_value in zip((answer, *grads), (expected, *expected_grads), strict=True):
        assert (value.double() - exact_value).norm() < 0.02 * exact_value.norm()
