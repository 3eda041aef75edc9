"""The operators of namespace milkweed: values, opcheck, compile, export."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from milkweed.kernels.attention import attention_reference
from milkweed.kernels.blocked_mlp import block_mlp
from milkweed.kernels.conv_branch import pack_conv_branch
from milkweed.kernels.native import library as native
from milkweed.kernels.native import torch_ops
from milkweed.kernels.performer import PerformerMlp, pack_performer, performer_reference
from milkweed.kernels.reference import monarch_reference

NAMES = (
    *("monarch_mlp", "short_attention", "short_attention with sizes"),
    *("performer_attention", "conv_branch", "add_layernorm"),
)


@dataclass(frozen=True)
class Case:
    """One call of an operator, and what it should give, in float32 from unpacked parameters."""

    function: Callable[..., Tensor]
    arguments: tuple[Any, ...]
    truth: Tensor

    @property
    def op(self) -> Any:
        return getattr(torch.ops.milkweed, self.function.__name__).default


def case(name: str, dtype: torch.dtype = torch.bfloat16) -> Case:
    """A small call of every operator, all optional tensors given."""
    torch.manual_seed(0)
    return {
        "monarch_mlp": _mlp,
        "short_attention": _attention,
        "short_attention with sizes": _sized_attention,
        "performer_attention": _performer,
        "conv_branch": _conv,
        "add_layernorm": _add_norm,
    }[name](dtype)


def _factors(nb: int, p: int, s: int) -> tuple[Tensor, Tensor, Tensor]:
    """Factors (nb, p, p) and (nb, s, p), exact in bfloat16, and a bias."""
    w1, w2 = (torch.randn(nb, rows, p).div(p**0.5).bfloat16().float() for rows in (p, s))
    return w1, w2, torch.randn(nb * s)


def _mlp(dtype: torch.dtype) -> Case:
    fc1, fc2 = _factors(4, 48, 64), _factors(4, 64, 48)
    fc2 = (fc2[0][:, :48].contiguous(), fc2[1][:, :, :48].contiguous(), fc2[2])  # of rank 48
    packed = block_mlp(fc1, fc2, dtype)
    x, residual = torch.randn(3, 192).to(dtype), torch.randn(3, 192).to(dtype)
    weight, bias = torch.rand(192) + 0.5, torch.randn(192)
    hidden = monarch_reference(F.layer_norm(x.float(), (192,), weight, bias, 1e-6), *fc1[:2]) + fc1[2]
    truth = monarch_reference(F.gelu(hidden), *fc2[:2]) + fc2[2] + residual.float()
    return Case(torch_ops.monarch_mlp, (x, *packed.tensors, residual, weight, bias, 1e-6, 0), truth)


def _attention(dtype: torch.dtype) -> Case:
    qkv = torch.randn(2, 17, 3 * 2 * 32).to(dtype)
    return Case(torch_ops.short_attention, (qkv, 2, 32**-0.5, None, 0), attention_reference(qkv.float(), 2, 32**-0.5))


def _sized_attention(dtype: torch.dtype) -> Case:
    qkv, log_sizes = torch.randn(2, 17, 3 * 2 * 32).to(dtype), torch.randint(1, 5, (2, 17)).float().log()
    truth = attention_reference(qkv.float(), 2, 32**-0.5, log_sizes)
    return Case(torch_ops.short_attention, (qkv, 2, 32**-0.5, log_sizes, 0), truth)


def _performer(dtype: torch.dtype) -> Case:
    dim = 64
    w, proj, fc1, fc2 = (torch.randn(rows, dim) / dim**0.5 for rows in (dim // 2, dim, dim, dim))
    mlp = PerformerMlp(torch.rand(dim) + 0.5, torch.randn(dim), fc1, torch.randn(dim), fc2, torch.randn(dim), 1e-5)
    packed = pack_performer(w, proj, torch.randn(dim), mlp, eps=1e-8, dtype=dtype)
    kqv, parallel = (0.5 * torch.randn(2, 20, 3 * dim)).to(dtype), torch.randn(2, 20, dim).to(dtype)
    arguments = (kqv, packed.weights, packed.biases, parallel, packed.eps, packed.norm_eps)
    truth = performer_reference(kqv.float(), arguments[1], arguments[2], parallel.float(), *arguments[4:])
    return Case(torch_ops.performer_attention, (*arguments, 0), truth)


def _conv(dtype: torch.dtype) -> Case:
    # Eight groups: a block of the kernel's first tile takes so many.
    convs = [nn.Conv2d(i, o, 3, padding=1, groups=8) for i, o in ((32, 64), (64, 32), (32, 32))]
    packed = pack_conv_branch(convs, dtype)
    tokens, residual = torch.randn(2, 26, 32).to(dtype), torch.randn(2, 26, 32).to(dtype)
    grid = tokens[:, 1:].float().transpose(1, 2).unflatten(2, (5, 5))
    with torch.no_grad():
        branch = F.silu(convs[2](F.silu(convs[1](F.silu(convs[0](grid)))))).flatten(2).transpose(1, 2)
    truth = residual.float() + F.pad(branch, (0, 0, 1, 0))
    arguments = (tokens, *packed.operands, residual, packed.groups, True, 0)
    return Case(torch.ops.milkweed.conv_branch, arguments, truth)


def _add_norm(dtype: torch.dtype) -> Case:
    x, residual = torch.randn(5, 200).to(dtype), torch.randn(5, 200).to(dtype)
    weight, bias = torch.rand(200) + 0.5, torch.randn(200)
    sums = x.float() + residual.float()
    truth = torch.stack((sums, F.layer_norm(sums, (200,), weight, bias, 1e-6)))
    return Case(torch_ops.add_layernorm, (x, residual, weight, bias, 1e-6), truth)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_an_operator_computes_its_function_on_a_cpu(name: str, dtype: torch.dtype) -> None:
    call = case(name, dtype)
    y = call.function(*call.arguments)
    assert y.dtype == dtype
    assert y.is_contiguous()
    error = (y.float() - call.truth).norm() / call.truth.norm()
    assert error < (8e-3 if dtype == torch.bfloat16 else 2e-3)


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize("name", NAMES)
def test_every_operator_passes_opcheck(name: str) -> None:
    call = case(name)
    torch.library.opcheck(call.op, call.arguments)
    # Every optional tensor left out.
    optional = [i for i, a in enumerate(call.op._schema.arguments) if isinstance(a.type, torch.OptionalType)]
    without = tuple(None if i in optional else value for i, value in enumerate(call.arguments))
    torch.library.opcheck(call.op, without)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow_beyond(1)
def test_an_operator_is_compiled_without_graph_breaks(name: str) -> None:
    call = case(name)

    def program(first: Tensor) -> Tensor:
        return call.function(first * 2, *call.arguments[1:]) + 1

    compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
    first = call.arguments[0]
    assert torch.equal(compiled(first), program(first))


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")  # PyTorch 2.11's own, in importing Inductor
@pytest.mark.slow
def test_inductor_hands_over_contiguous_tensors() -> None:
    """A transposed product before the operator: Inductor may not pass on the strides that suit it."""
    call = case("short_attention")

    def program(first: Tensor) -> Tensor:
        return call.function((first.mT * 2).mT.contiguous(), *call.arguments[1:]) + 1

    first = call.arguments[0]
    compiled = torch.compile(program, fullgraph=True)
    assert torch.equal(compiled(first), program(first))


@pytest.mark.parametrize("name", NAMES)
def test_an_operator_is_exported(name: str) -> None:
    call = case(name)

    class Program(nn.Module):
        def forward(self, first: Tensor) -> Tensor:
            return call.function(first, *call.arguments[1:])

    first = call.arguments[0]
    exported = torch.export.export(Program(), (first,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    assert any(node.target is call.op for node in exported.graph.nodes)
    several = torch.cat([first, first])
    if name == "short_attention":  # a captured residual, or sizes, are of one batch
        assert torch.equal(exported.module()(several), call.function(several, *call.arguments[1:]))
    assert torch.equal(exported.module()(first), call.function(*call.arguments))


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_an_operator_computes_the_same_on_a_gpu(name: str, dtype: torch.dtype) -> None:
    status = native.native_status()
    assert status.loaded, status.reason
    call = case(name, dtype)
    arguments = [value.cuda() if isinstance(value, Tensor) else value for value in call.arguments]
    y = call.function(*arguments).cpu().float()
    assert (y - call.truth).norm() / call.truth.norm() < (8e-3 if dtype == torch.bfloat16 else 2e-3)
    wrong = [value.float() if value is arguments[0] else value for value in arguments]
    with pytest.raises(RuntimeError, match="is float32: bfloat16 or float16 is needed"):
        call.function(*wrong)
    wrong[0] = torch.empty(arguments[0].numel() + 1, dtype=dtype, device="cuda")[1:].view(arguments[0].shape)
    with pytest.raises(RuntimeError, match="begins 2 bytes after a multiple of 16"):
        call.function(*wrong)
    wrong[0] = arguments[0].mT.contiguous().mT
    with pytest.raises(RuntimeError, match="is not contiguous: its strides are"):
        call.function(*wrong)
