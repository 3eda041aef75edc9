"""Monarch layers on Triton, all but the kernels: layout, operators, impls, and what they refuse."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from milkweed.kernels.blocked import Activation, BlockedMonarch, blocked_reference
from milkweed.kernels.chain_ir import Add, Dense, Gelu, Monarch, Problem, evaluate
from milkweed.kernels.impls.base import OTHER_KIND
from milkweed.kernels.impls.triton import GluonMlp, TritonLinear, TritonMlp, triton_impls
from milkweed.kernels.reference import monarch_reference
from milkweed.kernels.shapes import MonarchShape
from milkweed.kernels.triton import linear as triton_module
from milkweed.kernels.triton.inner import ROWS
from milkweed.kernels.triton.layout import check_layer, sort_layer, sort_mlp, sorted_mlp_reference
from milkweed.kernels.triton.linear import triton_linear, triton_mlp, triton_refusal
from milkweed.kernels.triton.tiles import VARIANTS
from milkweed.kernels.tuning.verify import relative_error

CPU = torch.device("cpu")


def factors(K: int, q: int, p: int, J: int, s: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    w1 = torch.randn(K, q, p, generator=generator) / p**0.5
    w2 = torch.randn(J, s, K * q // J, generator=generator) / (K * q / J) ** 0.5
    return w1, w2


def product(x: Tensor, w1: Tensor, w2: Tensor, out: int) -> Tensor:
    wide = F.pad(x.double(), (0, w1.shape[0] * w1.shape[2] - x.shape[1]))
    return monarch_reference(wide, w1.double(), w2.double())[:, :out]


def monarch(K: int, q: int, p: int, J: int, s: int, *, bias: bool = True, seed: int = 0) -> Monarch:
    w1, w2 = factors(K, q, p, J, s, seed)
    return Monarch(w1, w2, torch.randn(J * s) if bias else None, K * p, J * s)


def half(*shape: int) -> Tensor:
    return torch.randn(*shape).half()


blocks = st.sampled_from([1, 2, 3, 4, 8])


@given(blocks, blocks, st.integers(1, 9), st.integers(1, 20), st.integers(1, 20), st.booleans(), st.data())
@settings(deadline=None, max_examples=60)
def test_layout_is_the_definition(K: int, J: int, r: int, p: int, s: int, bias: bool, data: st.DataObject) -> None:
    w1, w2 = factors(K, J * r, p, J, s)
    width = data.draw(st.integers((K - 1) * p + 1, K * p))
    out = data.draw(st.integers((J - 1) * s + 1, J * s))
    b = torch.randn(out) if bias else None
    layer = sort_layer(w1, w2, b, out, torch.float32)
    check_layer(layer)
    assert layer.c % 8 == 0
    x = torch.randn(3, width)
    want = product(x, w1, w2, out) + (0 if b is None else b.double())
    torch.testing.assert_close(blocked_reference(x, layer, 0, None).double(), want, rtol=1e-4, atol=1e-5)


@given(blocks, blocks, blocks, st.integers(1, 40), st.integers(1, 6), st.data())
@settings(deadline=None, max_examples=60)
def test_layout_of_an_mlp_is_the_definition(J: int, K2: int, J2: int, s: int, r: int, data: st.DataObject) -> None:
    hidden = data.draw(st.integers(max(1, (J - 1) * s + 1), J * s))
    p2 = -(-hidden // K2)
    first, second = factors(J, J * r, 5, J, s), factors(K2, J2 * r, p2, J2, 3, seed=1)
    bias = torch.randn(hidden)
    fc1, fc2 = sort_mlp(
        sort_layer(*first, bias, hidden, torch.float32),
        sort_layer(*second, None, J2 * 3, torch.float32),
        hidden,
    )
    check_layer(fc1)
    check_layer(fc2)
    x = torch.randn(3, J * 5)
    want = product(F.gelu(product(x, *first, hidden) + bias.double()), *second, J2 * 3)
    torch.testing.assert_close(sorted_mlp_reference(x, fc1, fc2, None).double(), want, rtol=1e-4, atol=1e-5)


def test_model_widths_are_not_padded() -> None:
    """ViT-B's and ViT-S's blocks fill their slots, so that no launch reads or writes more than it must."""
    for d, h in ((768, 3072), (384, 1536)):
        narrow, wide = d // 4, h // 4
        fc1 = sort_layer(*factors(4, narrow, narrow, 4, wide), None, h, torch.bfloat16)
        fc2 = sort_layer(*factors(4, narrow, wide, 4, narrow), None, d, torch.bfloat16)
        first, second = sort_mlp(fc1, fc2, h)
        assert (first.w2.shape, first.out_features, second.p) == ((4, wide, narrow), h, wide)


def test_layers_that_do_not_fit_are_refused() -> None:
    w1, w2 = factors(4, 8, 8, 4, 8)
    with pytest.raises(ValueError, match=r"bias of shape \(8,\): the layer has 32 outputs"):
        sort_layer(w1, w2, torch.zeros(8), 32, torch.float16)
    layer = sort_layer(w1, w2, None, 32, torch.float16)
    with pytest.raises(ValueError, match="fc1 gives 32 features, fc2 takes 40 of 32"):
        sort_mlp(layer, layer, 40)
    for wrong in (replace(layer, p=17), replace(layer, out_features=33), replace(layer, w2=layer.w2[:, :, 1:])):
        with pytest.raises(ValueError, match="not a sorted Monarch layer"):
            check_layer(wrong)


@pytest.fixture
def layer() -> BlockedMonarch:
    return sort_layer(*factors(4, 18, 12, 4, 10), torch.randn(40), 40, torch.float16)


@pytest.fixture
def mlp() -> tuple[BlockedMonarch, BlockedMonarch]:
    fc1 = sort_layer(*factors(2, 8, 12, 2, 15), torch.randn(30), 30, torch.float16)
    fc2 = sort_layer(*factors(3, 8, 10, 4, 6), None, 24, torch.float16)
    return sort_mlp(fc1, fc2, 30)


def test_operators_on_a_cpu(layer: BlockedMonarch, mlp: tuple[BlockedMonarch, BlockedMonarch]) -> None:
    x, residual = half(5, 48), half(5, 40)
    got = triton_linear(x, layer, residual, Activation.GELU, 3)
    assert torch.equal(got, blocked_reference(x, layer, Activation.GELU, residual))
    x, residual = half(5, 24), half(5, 24)
    assert torch.equal(triton_mlp(x, *mlp, residual), sorted_mlp_reference(x, *mlp, residual))
    assert triton_linear(half(0, 48), layer).shape == (0, 40)
    assert triton_mlp(half(0, 24), *mlp).shape == (0, 24)


def test_operators_keep_their_contract(layer: BlockedMonarch, mlp: tuple[BlockedMonarch, BlockedMonarch]) -> None:
    x, residual = half(5, 48), half(5, 40)
    args = (x, layer.w1, layer.w2, layer.bias, residual, layer.p, 40, 1, 0)
    torch.library.opcheck(torch.ops.milkweed.triton_monarch_linear.default, args)
    fc1, fc2 = mlp
    args = (half(5, 24), fc1.w1, fc1.w2, fc1.bias, fc2.w1, fc2.w2, fc2.bias, None, fc1.p, 24, 0, None)
    torch.library.opcheck(torch.ops.milkweed.triton_monarch_mlp.default, args)


def test_operators_compile_and_export(layer: BlockedMonarch) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return triton_linear(x + 1, layer, act=Activation.GELU) * 2

    x = half(5, 48)
    want = Model()(x)
    compiled = torch.compile(Model(), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), want)
    assert torch.equal(torch.export.export(Model(), (x,)).module()(x), want)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": half(5, 49)}, r"x \(5, 49\) of torch.float16: .* n <= 48"),
        ({"x": torch.randn(5, 48)}, "x .* of torch.float32"),
        ({"x": torch.randn(5, 48).bfloat16()}, "x is torch.bfloat16, other tensors are"),
        ({"x": half(48, 5).t()}, "contiguous"),
        ({"residual": half(5, 39)}, r"residual \(5, 39\): \(5, 40\) is needed"),
        ({"tile": 99}, "tile 99: there are"),
    ],
)
def test_operands_that_do_not_fit_are_refused(layer: BlockedMonarch, change: dict[str, Tensor], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        triton_linear(**({"x": half(5, 48), "layer": layer} | change))


def test_devices_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    shape, cuda = MonarchShape(4, 8, 8, 4, 8, 8), torch.device("cuda")
    assert "cpu" in str(triton_refusal(shape, torch.bfloat16, CPU))
    for dtype in (torch.float32, torch.float64):
        assert "bfloat16 or float16 is needed" in str(triton_refusal(shape, dtype, cuda))
    monkeypatch.setattr(triton_module, "missing_for_triton", lambda: None)
    for capability, words in (((7, 5), "7.5: 8.0 or later"), ((9, 0), "None")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        assert words in str(triton_refusal(shape, torch.bfloat16, cuda))
    assert "nothing to compute" in str(triton_refusal(MonarchShape(4, 0, 8, 4, 8, 0), torch.bfloat16, cuda))


def test_what_triton_needs_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refusal() -> str | None:
        return triton_refusal(MonarchShape(4, 8, 8, 4, 8, 8), torch.bfloat16, torch.device("cuda"))

    monkeypatch.setattr(triton_module, "find_spec", lambda name: object())
    monkeypatch.setattr(triton_module, "version", lambda name: "3.6.0")
    monkeypatch.setenv("CC", "/usr/bin/cc")
    (tmp_path / "Python.h").touch()
    schemes = {"posix_prefix": {"include": str(tmp_path)}, "posix_local": {"include": str(tmp_path / "local")}}
    monkeypatch.setattr(triton_module.sysconfig, "get_paths", lambda scheme="posix_local": schemes[scheme])
    monkeypatch.setattr(triton_module.sysconfig, "get_default_scheme", lambda: "posix_local")  # Debian's own Python
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert refusal() is None
    (tmp_path / "Python.h").unlink()
    assert refusal() == "no Python.h: triton needs the headers of this Python"
    monkeypatch.delenv("CC")
    monkeypatch.setattr(triton_module.shutil, "which", lambda name: None)
    assert refusal() == "no C compiler: triton needs gcc, clang or $CC"
    for found, words in (("3.5.1", "triton 3.5.1: 3.6 or later is needed"), ("4.0.0+cu13", "no C compiler")):
        monkeypatch.setattr(triton_module, "version", lambda name, found=found: found)
        assert str(refusal()).startswith(words)
    monkeypatch.setattr(triton_module, "find_spec", lambda name: None)
    assert refusal() == "the package triton is not installed"


@pytest.mark.slow
def test_triton_is_not_imported_before_it_launches() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch\n"
        "from milkweed.kernels.impls.triton import triton_impls\n"
        "from milkweed.kernels.triton.layout import sort_layer\n"
        "from milkweed.kernels.triton.linear import triton_linear\n"
        "layer = sort_layer(torch.ones(2, 8, 8), torch.ones(2, 8, 8), None, 16, torch.float16)\n"
        "print(len(triton_impls()), float(triton_linear(torch.ones(1, 16).half(), layer)[0, 0]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == [str(2 * len(VARIANTS) + len(ROWS)), "64.0"], done.stderr


@pytest.mark.parametrize("bias", [True, False])
def test_impls_give_the_chain(bias: bool) -> None:
    problem = Problem(CPU, torch.float16, 2, 5)
    fc1, fc2 = monarch(4, 8, 6, 4, 24, bias=bias), monarch(4, 8, 24, 4, 6, seed=1)
    x, hidden = half(2, 5, 24), half(2, 5, 96)
    for impl, segment, residual in (
        (TritonLinear(0, on_cpu=True), [fc1], None),
        (TritonLinear(0, on_cpu=True), [fc1, Gelu()], None),
        (TritonLinear(0, on_cpu=True), [fc1, Add()], hidden),
        (TritonMlp(0, on_cpu=True), [fc1, Gelu(), fc2], None),
        (TritonMlp(0, on_cpu=True), [fc1, Gelu(), fc2, Add()], x),
    ):
        assert impl.refuses(segment, problem) is None
        runner = impl.build(segment, problem)
        want = evaluate(segment, x.double(), None if residual is None else residual.double())
        assert relative_error(runner(x, residual), want) <= 1e-3
        assert runner.tensors[0] is impl.build(segment, replace(problem, batch=9)).tensors[0]


def test_impls_say_what_they_are_not_for() -> None:
    problem = Problem(CPU, torch.float32, 2, 5)
    layer = monarch(4, 8, 6, 4, 6)
    dense = Dense(torch.zeros(24, 24), None)
    impls = triton_impls()
    assert len({impl.name for impl in impls}) == len(impls) == 2 * len(VARIANTS) + len(ROWS)
    for impl in impls:
        assert impl.refuses([dense], problem) == OTHER_KIND
        assert impl.refuses([Gelu()], problem) == OTHER_KIND
        segment = [layer] if isinstance(impl, TritonLinear) else [layer, Gelu(), layer]
        words = "are not multiples of 64" if isinstance(impl, GluonMlp) else "device is cpu"
        assert words in str(impl.refuses(segment, problem))
        assert impl.refuses([layer, layer], problem) == OTHER_KIND
