"""The Monarch product against fly's golden vectors and against its definition, through every path."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from milkweed.kernels.feature_major import feature_major_linear
from milkweed.kernels.ops import decide, monarch_linear, packed_linear, packed_mlp
from milkweed.kernels.packing import pack_monarch
from milkweed.kernels.reference import monarch_batched, monarch_reference, monarch_to_dense

Case = dict[str, np.ndarray]
Path_ = Callable[[Tensor, Tensor, Tensor, Tensor | None, int], Tensor]


def golden_cases(shared: Path) -> dict[str, Case]:
    cases: dict[str, Case] = {}
    with np.load(shared / "golden" / "fly_monarch.npz") as data:
        for key in data.files:
            case, _, name = key.rpartition("/")
            cases.setdefault(case, {})[name] = data[key]
    return {name: case for name, case in cases.items() if "x" in case}


def loops(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    """The definition once more, element by element, for a single vector."""
    (K, q, p), (J, s, r) = w1.shape, w2.shape
    t = [sum(w1[a // q, a % q, i] * x[(a // q) * p + i] for i in range(p)) for a in range(K * q)]
    y = torch.zeros(J * s, dtype=x.dtype)
    for j in range(J):
        for u in range(s):
            y[u * J + j] = sum(w2[j, u, c] * t[c * J + j] for c in range(r))
    return y


def through_reference(x: Tensor, w1: Tensor, w2: Tensor, bias: Tensor | None, out: int) -> Tensor:
    wide = torch.nn.functional.pad(x, (0, w1.shape[0] * w1.shape[2] - x.shape[-1]))
    y = monarch_reference(wide, w1, w2)[..., :out]
    return y if bias is None else y + bias


def through_public_op(x: Tensor, w1: Tensor, w2: Tensor, bias: Tensor | None, out: int) -> Tensor:
    with torch.inference_mode():
        return monarch_linear(x, w1, w2, bias, out_features=out)


def through_autograd(x: Tensor, w1: Tensor, w2: Tensor, bias: Tensor | None, out: int) -> Tensor:
    return monarch_linear(x, w1.clone().requires_grad_(), w2, bias, out_features=out).detach()


def through_packed(x: Tensor, w1: Tensor, w2: Tensor, bias: Tensor | None, out: int) -> Tensor:
    layer = pack_monarch(w1, w2, bias, in_features=x.shape[-1], out_features=out)
    return packed_linear(x, layer)


def through_dense(x: Tensor, w1: Tensor, w2: Tensor, bias: Tensor | None, out: int) -> Tensor:
    y = x @ monarch_to_dense(w1, w2, out, x.shape[-1]).T
    return y if bias is None else y + bias


PATHS = [through_reference, through_public_op, through_autograd, through_packed, through_dense]


@pytest.mark.parametrize("in_float32", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_every_path_gives_flys_outputs(shared: Path, path: Path_, in_float32: bool) -> None:
    cases = golden_cases(shared)
    assert len(cases) >= 21
    for name, case in cases.items():
        want = torch.from_numpy(case["y"])
        dtype = torch.float32 if in_float32 else want.dtype
        x, w1, w2 = (torch.from_numpy(case[k]).to(dtype) for k in ("x", *_factor_names(case)))
        bias = torch.from_numpy(case["bias"]).to(dtype) if "bias" in case else None
        got = path(x, w1, w2, bias, want.shape[-1])
        assert got.shape == want.shape, name
        error = (got.to(want.dtype) - want).abs().max() / want.abs().max()
        assert error <= (1e-12 if dtype == torch.float64 else 1e-5), f"{name}: {error}"


def test_dense_weight_is_flys(shared: Path) -> None:
    seen = 0
    for name, case in golden_cases(shared).items():
        if "dense_weight" not in case or case["dense_weight"].dtype != np.float64:
            continue
        want = torch.from_numpy(case["dense_weight"])
        w1, w2 = (torch.from_numpy(case[k]) for k in _factor_names(case))
        got = monarch_to_dense(w1, w2, *want.shape)
        assert (got - want).abs().max() <= 1e-12, name
        seen += 1
    assert seen >= 16


def _factor_names(case: Case) -> tuple[str, str]:
    return ("blkdiag1", "blkdiag2") if "blkdiag1" in case else ("w1", "w2")


shapes = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(1, 5))


@settings(max_examples=60, deadline=None)
@given(shapes, st.integers(0, 4), st.integers(0, 2**31))
def test_all_paths_follow_the_definition_for_any_shape(
    kjm: tuple[int, int, int, int, int], rows: int, seed: int
) -> None:
    K, J, multiple, p, s = kjm
    # K*q = J*r for any K, J: take q = J*m, r = K*m.
    g = torch.Generator().manual_seed(seed)
    w1 = torch.randn(K, J * multiple, p, generator=g, dtype=torch.float64)
    w2 = torch.randn(J, s, K * multiple, generator=g, dtype=torch.float64)
    x = torch.randn(rows, K * p, generator=g, dtype=torch.float64)
    want = torch.stack([loops(row, w1, w2) for row in x]) if rows else torch.zeros(0, J * s, dtype=torch.float64)
    for path in PATHS:
        torch.testing.assert_close(path(x, w1, w2, None, J * s), want, rtol=1e-12, atol=1e-12)


def test_ranks_that_differ_between_blocks_follow_the_definition() -> None:
    # q = 3 rows over J = 2 residues: sub-blocks of rank 2 and 1.
    g = torch.Generator().manual_seed(1)
    w1 = torch.randn(2, 3, 5, generator=g, dtype=torch.float64)
    w2 = torch.randn(2, 4, 3, generator=g, dtype=torch.float64)
    x = torch.randn(3, 10, generator=g, dtype=torch.float64)
    want = torch.stack([loops(row, w1, w2) for row in x])
    for path in PATHS:
        torch.testing.assert_close(path(x, w1, w2, None, 8), want, rtol=1e-12, atol=1e-12)


def test_gradients_are_those_of_the_definition() -> None:
    g = torch.Generator().manual_seed(2)
    shapes = ((4, 6), (2, 4, 3), (4, 3, 2))
    x, w1, w2 = (torch.randn(s, generator=g, dtype=torch.float64, requires_grad=True) for s in shapes)
    bias = torch.randn(11, generator=g, dtype=torch.float64, requires_grad=True)
    got = torch.autograd.grad(monarch_linear(x, w1, w2, bias, out_features=11).square().sum(), (x, w1, w2, bias))
    reference = monarch_reference(x, w1, w2)[:, :11] + bias
    want = torch.autograd.grad(reference.square().sum(), (x, w1, w2, bias))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


def test_strided_and_batched_inputs_give_the_same_rows() -> None:
    g = torch.Generator().manual_seed(3)
    w1, w2 = torch.randn(4, 4, 3, generator=g), torch.randn(4, 5, 4, generator=g)
    x = torch.randn(12, 2, 7, generator=g)
    strided = x.permute(2, 1, 0)  # (7, 2, 12), last dimension not contiguous
    flat = monarch_linear(strided.reshape(-1, 12), w1, w2)
    torch.testing.assert_close(monarch_linear(strided, w1, w2), flat.view(7, 2, 20))


def test_nan_in_one_row_stays_in_that_row() -> None:
    g = torch.Generator().manual_seed(4)
    w1, w2 = torch.randn(2, 4, 8, generator=g), torch.randn(2, 8, 4, generator=g)
    x = torch.randn(5, 16, generator=g)
    clean = monarch_linear(x, w1, w2)
    x[3, 7] = float("nan")
    dirty = monarch_linear(x, w1, w2)
    assert dirty[3].isnan().all()
    torch.testing.assert_close(dirty[[0, 1, 2, 4]], clean[[0, 1, 2, 4]], rtol=0, atol=0)


@pytest.mark.parametrize("widths", [(24, 36, 20), (50, 70, 50), (30, 31, 17)])
def test_mlp_equals_its_two_layers(widths: tuple[int, int, int]) -> None:
    a, b, c = widths
    g = torch.Generator().manual_seed(5)

    def layer(n: int, m: int) -> tuple[Tensor, Tensor, Tensor]:
        p, s = -(-n // 4), -(-m // 4)
        q = min(p, s)
        return tuple(torch.randn(shape, generator=g, dtype=torch.float64) for shape in ((4, q, p), (4, s, q), (m,)))

    first, second = layer(a, b), layer(b, c)
    x = torch.randn(2, 9, a, generator=g, dtype=torch.float64)
    fc1 = pack_monarch(*first, in_features=a, out_features=b)
    fc2 = pack_monarch(*second, in_features=b, out_features=c)
    hidden = torch.nn.functional.gelu(through_reference(x, *first, b))
    want = through_reference(hidden, *second, c)
    torch.testing.assert_close(packed_mlp(x, fc1, fc2), want, rtol=1e-12, atol=1e-12)


def test_bfloat16_is_as_exact_as_the_batched_path() -> None:
    g = torch.Generator().manual_seed(6)
    w1, w2 = torch.randn(4, 96, 96, generator=g) / 10, torch.randn(4, 384, 96, generator=g) / 10
    x = torch.randn(197, 384, generator=g)
    low = [t.bfloat16() for t in (x, w1, w2)]
    truth = monarch_reference(*(t.double() for t in low))
    packed = pack_monarch(low[1], low[2])
    ours = (feature_major_linear(low[0], packed).double() - truth).norm() / truth.norm()
    theirs = (monarch_batched(*low).double() - truth).norm() / truth.norm()
    assert ours <= 4e-3
    assert ours <= 1.25 * theirs


def test_packing_converts_once_and_shares_when_it_can() -> None:
    w1, w2 = torch.randn(2, 4, 3), torch.randn(2, 5, 4)
    assert pack_monarch(w1, w2).w1.data_ptr() == w1.data_ptr()
    assert pack_monarch(w1, w2).w2.data_ptr() == w2.data_ptr()
    assert pack_monarch(w1, w2, dtype=torch.bfloat16).w2.dtype == torch.bfloat16


def test_packed_parts_come_apart_again() -> None:
    w1, w2, bias = torch.randn(2, 4, 3), torch.randn(2, 5, 4), torch.randn(9)
    packed = pack_monarch(w1, w2, bias, out_features=9)
    assert torch.equal(packed.factor2, w2)
    assert packed.bias is not None
    assert torch.equal(packed.bias, bias)
    assert pack_monarch(w1, w2).bias is None


@pytest.mark.parametrize(
    ("shapes", "width", "out", "message"),
    [
        (((2, 3, 4), (2, 5, 4)), 8, None, r"w1 \(2, 3, 4\) gives 6 values, w2 \(2, 5, 4\) takes 8"),
        (((3, 4), (2, 5, 4)), 8, None, "must be 3-D"),
        (((2, 4, 4), (2, 5, 4)), 9, None, "width 9 is wider than the 8 inputs"),
        (((2, 4, 4), (2, 5, 4)), 8, 11, "out_features 11 must be between 1 and the 10"),
        (((2, 4, 4), (2, 5, 4)), 8, 0, "out_features 0 must be between 1 and the 10"),
    ],
)
def test_wrong_shapes_are_named(shapes: tuple[tuple[int, ...], ...], width: int, out: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        monarch_linear(torch.zeros(2, width), torch.zeros(shapes[0]), torch.zeros(shapes[1]), out_features=out)


def test_packed_layers_refuse_what_they_were_not_packed_for() -> None:
    layer = pack_monarch(torch.zeros(2, 4, 3), torch.zeros(2, 5, 4))
    with pytest.raises(ValueError, match="width 7: the layer takes 6"):
        packed_linear(torch.zeros(1, 7), layer)
    with pytest.raises(ValueError, match=r"input is torch.float64, the layer was packed as torch.float32"):
        packed_linear(torch.zeros(1, 6, dtype=torch.float64), layer)
    with pytest.raises(ValueError, match="fc1 gives 10 features, fc2 takes 6"):
        packed_mlp(torch.zeros(1, 6), layer, layer)
    with pytest.raises(ValueError, match=r"bias of shape \(3,\): the layer has 10 outputs"):
        pack_monarch(torch.zeros(2, 4, 3), torch.zeros(2, 5, 4), torch.zeros(3))


def test_decision_follows_device_and_gradients() -> None:
    cpu = torch.device("cpu")
    assert decide(cpu, differentiable=False) == "feature_major (CPU inference: permutations are strides)"
    assert decide(cpu, differentiable=True) == "batched (gradients wanted)"
    assert decide(torch.device("meta"), differentiable=False).startswith("batched (plain PyTorch on meta: ")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_cuda_agrees_with_float64(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(7)
    w1, w2 = torch.randn(4, 96, 96, generator=g) / 10, torch.randn(4, 384, 96, generator=g) / 10
    x = torch.randn(197, 384, generator=g)
    low = [t.to("cuda", dtype) for t in (x, w1, w2)]
    truth = monarch_reference(*(t.double().cpu() for t in low))
    got = packed_linear(low[0], pack_monarch(low[1], low[2])).double().cpu()
    assert (got - truth).norm() / truth.norm() <= (1e-5 if dtype == torch.float32 else 4e-3)
