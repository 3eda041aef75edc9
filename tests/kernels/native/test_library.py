"""The operators of namespace milkweed without a GPU: values, opcheck, compile, export; what is said of the library."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from milkweed.kernels import monarch_reference
from milkweed.kernels.attention import attention_reference
from milkweed.kernels.blocked import Activation, block_monarch
from milkweed.kernels.blocked_mlp import block_mlp
from milkweed.kernels.conv_branch import pack_conv_branch
from milkweed.kernels.native import library as native
from milkweed.kernels.native import torch_ops
from milkweed.kernels.native.stamp import (
    LIBRARY,
    LibraryStamp,
    file_sha256,
    read_stamp,
    source_hash,
    stamp_path,
    write_stamp,
)
from milkweed.kernels.performer import PerformerMlp, pack_performer, performer_reference

NAMES = ("monarch_linear", "monarch_mlp", "short_attention", "performer_attention", "conv_branch")


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
        "monarch_linear": _linear,
        "monarch_mlp": _mlp,
        "short_attention": _attention,
        "performer_attention": _performer,
        "conv_branch": _conv,
    }[name](dtype)


def _factors(nb: int, p: int, s: int) -> tuple[Tensor, Tensor, Tensor]:
    """Factors (nb, p, p) and (nb, s, p), exact in bfloat16, and a bias."""
    w1, w2 = (torch.randn(nb, rows, p).div(p**0.5).bfloat16().float() for rows in (p, s))
    return w1, w2, torch.randn(nb * s)


def _linear(dtype: torch.dtype) -> Case:
    w1, w2, bias = _factors(4, 24, 16)
    layer = block_monarch(w1, w2, bias, 96, 64, dtype)
    x, residual = torch.randn(5, 96).to(dtype), torch.randn(5, 64).to(dtype)
    truth = F.gelu(monarch_reference(x.float(), w1, w2) + bias) + residual.float()
    return Case(torch_ops.monarch_linear, (x, layer.w1, layer.w2, layer.bias, residual, int(Activation.GELU), 0), truth)


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
    return Case(torch_ops.short_attention, (qkv, 2, 32**-0.5, 0), attention_reference(qkv.float(), 2, 32**-0.5))


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
    convs = [nn.Conv2d(i, o, 3, padding=1, groups=4) for i, o in ((16, 32), (32, 16), (16, 16))]
    packed = pack_conv_branch(convs, dtype)
    tokens, residual = torch.randn(2, 26, 16).to(dtype), torch.randn(2, 26, 16).to(dtype)
    grid = tokens[:, 1:].float().transpose(1, 2).unflatten(2, (5, 5))
    with torch.no_grad():
        branch = F.silu(convs[2](F.silu(convs[1](F.silu(convs[0](grid)))))).flatten(2).transpose(1, 2)
    truth = residual.float() + F.pad(branch, (0, 0, 1, 0))
    layers = (packed.weight1, packed.bias1, packed.weight2, packed.bias2, packed.weight3, packed.bias3)
    return Case(torch_ops.conv_branch, (tokens, *layers, residual, packed.groups, True, 0), truth)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_an_operator_computes_its_function_on_a_cpu(name: str, dtype: torch.dtype) -> None:
    call = case(name, dtype)
    y = call.function(*call.arguments)
    assert y.dtype == dtype
    assert y.is_contiguous()
    error = (y.float() - call.truth).norm() / call.truth.norm()
    assert error < (8e-3 if dtype == torch.bfloat16 else 2e-3)


@pytest.mark.parametrize("name", NAMES)
def test_every_operator_passes_opcheck(name: str) -> None:
    call = case(name)
    torch.library.opcheck(call.op, call.arguments)
    # Every optional tensor left out.
    optional = [i for i, a in enumerate(call.op._schema.arguments) if isinstance(a.type, torch.OptionalType)]
    without = tuple(None if i in optional else value for i, value in enumerate(call.arguments))
    torch.library.opcheck(call.op, without)


@pytest.mark.parametrize("name", NAMES)
def test_an_operator_is_compiled_without_graph_breaks(name: str) -> None:
    call = case(name)

    def program(first: Tensor) -> Tensor:
        return call.function(first * 2, *call.arguments[1:]) + 1

    compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
    first = call.arguments[0]
    assert torch.equal(compiled(first), program(first))


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")  # PyTorch 2.11's own, in importing Inductor
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
    residual = {"monarch_linear", "monarch_mlp", "performer_attention", "conv_branch"}
    if name not in residual:  # a captured residual is of one size
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


LIBRARY_CHECK = """
import torch
from milkweed.kernels.native import library as native
native.load_library(native.library_path())
cuda = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
given = {"Tensor": torch.zeros(2, 2, 2), "int": 1, "float": 1.0, "bool": False}
for name in %r:
    op = getattr(torch.ops.milkweed, name).default
    arguments = [given.get(str(argument.type)) for argument in op._schema.arguments]
    try:
        op.redispatch(cuda, *arguments)
    except RuntimeError as error:
        print(error)
"""


def test_the_built_library_loads_and_checks_its_tensors() -> None:
    """The CUDA implementations are called with CPU tensors, as far as a machine without a GPU gets."""
    if not LIBRARY.exists() or read_stamp(LIBRARY).source_hash != source_hash():
        pytest.skip("not built from these sources: run `make kernels`")
    environment = {name: value for name, value in os.environ.items() if name != native.VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", LIBRARY_CHECK % (NAMES,)], capture_output=True, text=True, check=True, env=environment
    )
    firsts = ("x", "x", "qkv", "kqv", "tokens")
    wanted = [f"{name}: {first} is not on a CUDA device" for name, first in zip(NAMES, firsts, strict=True)]
    assert done.stdout.splitlines() == wanted


@pytest.fixture
def stamped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A file that passes for a library, on a machine that passes for one with an H200."""

    def make(**changes: Any) -> Path:
        path = tmp_path / "library.so"
        path.write_bytes(b"code")
        stamp = LibraryStamp(file_sha256(path), source_hash(), ("80", "90a"), "13.0", "2.10.0", "key")
        write_stamp(path, replace(stamp, **changes))
        monkeypatch.setenv(native.VARIABLE, str(path))
        return path

    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(torch.ops, "load_library", lambda path: None)
    monkeypatch.setattr(native, "_loaded", {})
    return make


def test_a_library_that_fits_is_loaded_once(stamped: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[Path] = []
    monkeypatch.setattr(torch.ops, "load_library", loads.append)
    path = stamped()
    assert native.native_status() == native.NativeStatus(True, "library.so (90a, CUDA 13.0)", "90a")
    assert native.native_status(0).loaded
    assert loads == [path]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"source_hash": "other"}, "library.so was built from other sources: run `make kernels`"),
        ({"library_sha256": "other"}, "library.so is not the file that library.json describes: run `make kernels`"),
        ({"nvcc": "12.9"}, "library.so was built for CUDA 12, this PyTorch for CUDA 13.2"),
        ({"archs": ("80", "120a")}, "no code for compute capability 9.0: library.so was built for 80, 120a"),
        ({"format": 0}, "library.json is not of format 1"),
    ],
)
def test_a_library_that_does_not_fit_is_refused(
    stamped: Callable[..., Path], changes: dict[str, Any], reason: str
) -> None:
    stamped(**changes)
    status = native.native_status()
    assert not status.loaded
    assert status.reason.endswith(reason)
    assert "\n" not in status.reason


def test_a_library_that_is_missing_or_broken(stamped: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = stamped()
    stamp_path(path).write_text(json.dumps([1]))
    assert native.native_status().reason == f"unusable library: {stamp_path(path)} is not of format 1"
    stamp_path(path).unlink()
    assert native.native_status().reason == f"unusable library: {stamp_path(path)} is missing"
    path.unlink()
    assert native.native_status().reason == f"MILKWEED_KERNELS = {path}: no such file"
    monkeypatch.delenv(native.VARIABLE)
    monkeypatch.setattr(native, "LIBRARY", path)
    assert native.native_status().reason == "not built: run `make kernels`"


def test_a_library_that_the_loader_refuses(stamped: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise OSError("library.so: file too short\nand more")

    monkeypatch.setattr(torch.ops, "load_library", refuse)
    stamped()
    assert native.native_status().reason == "library.so does not load: library.so: file too short"


def test_without_cuda_the_library_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert native.native_status(torch.device("cpu")).reason == "device is cpu: the kernels are CUDA's"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert native.native_status().reason == "no CUDA device"
    monkeypatch.setattr(torch.version, "cuda", None)
    assert native.native_status().reason == "this PyTorch is built without CUDA"
