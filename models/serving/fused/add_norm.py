"""Joins the halves of a block: the addition that ends the first and the norm that begins the second in one launch."""

from collections.abc import Callable, Sequence
from functools import cached_property

from torch import Tensor, nn

from ....kernels.add_layernorm import add_layernorm_refusal
from ....kernels.chain_ir import LayerNorm, Problem
from ....kernels.impls.base import Impl
from ....kernels.native.torch_ops import add_layernorm
from ....kernels.tuning.chain import Chain, CompiledChain, compile_plan
from .alternatives import Alternative, Part
from .chains import BlockChains
from .device_kernels import DeviceKernels

ADDING_AFTERWARDS = ("dense", "torch")
"""The impls that add the residual in a launch of its own on CUDA; the others add it while they store their result."""


class AddNorm(nn.Module):
    """Computes sums = x + residual and LayerNorm(sums) in plain PyTorch."""

    def __init__(self, norm: LayerNorm) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(len(norm.weight), norm.eps).requires_grad_(False)
        self.norm.weight.data, self.norm.bias.data = norm.weight, norm.bias

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        sums = x + residual
        return sums, self.norm(sums)


class AddNormPart(Part):
    """Computes an addition and the norm behind it by the compiled kernel or by torch."""

    kind, family = "add_layernorm", "native_add_layernorm"

    def __init__(self, plain: AddNorm, kernels: DeviceKernels) -> None:
        super().__init__(plain, kernels)
        self._norm = plain.norm
        (self._width,) = plain.norm.normalized_shape

    def describe(self) -> str:
        return f"add_layernorm({self._width},{self._norm.eps:g})"

    def refusal(self, problem: Problem) -> str | None:
        return self.kernels.refusal or add_layernorm_refusal(self._width, problem.dtype)

    def native_ways(self, problem: Problem) -> list[Alternative]:
        return [Alternative("native_add_layernorm", self._native(), self._float32, self.kernels.build_id)]

    def input_widths(self) -> tuple[int, ...]:
        return self._width, self._width

    @cached_property
    def _float32(self) -> tuple[Tensor, Tensor]:
        """Give the norm's weight and bias as the kernel takes them."""
        return self._norm.weight.detach().float(), self._norm.bias.detach().float()

    def _native(self) -> Callable[[Tensor, Tensor], Tensor]:
        weight, bias = self._float32

        def call(x: Tensor, residual: Tensor) -> Tensor:
            rows, residuals = (tensor.reshape(-1, self._width).contiguous() for tensor in (x, residual))
            return add_layernorm(rows, residuals, weight, bias, self._norm.eps).view(2, *x.shape)

        return call


def split_halves(
    chains: BlockChains, attention: CompiledChain, mlp: CompiledChain, impls: Sequence[Impl]
) -> tuple[CompiledChain, CompiledChain] | None:
    """Return the halves without the addition and the norm between them, or None where their kernels do these anyway."""
    if attention.plan.impls[-1] not in ADDING_AFTERWARDS or mlp.plan.impls[0] != "torch":
        return None
    first, second = Chain(chains.attention.operators[:-1]), Chain(chains.mlp.operators[1:])
    try:
        return (
            compile_plan(first, attention.plan.without_last(), attention.problem, impls),
            compile_plan(second, mlp.plan.without_first(), mlp.problem, impls),
        )
    except ValueError:  # an impl of the plan does not run what is left of its segment
        return None


def join_halves(first: CompiledChain, second: CompiledChain, joint: Alternative) -> tuple[Alternative, Alternative]:
    """Return both halves as `FusedBlock` calls them: the second one adds the residual to what the first one gives."""

    def call(x: Tensor, residual: Tensor) -> Tensor:
        sums, norms = joint.call(x, residual).unbind(0)
        return second(norms, sums)

    name = f"{joint.name} | {second.plan}"
    return (
        Alternative(str(first.plan), first, first.tensors),
        Alternative(name, call, (*joint.tensors, *second.tensors), joint.build_id),
    )


def unjoined(way: Alternative) -> Alternative:
    """Return the second half as `FusedBlock` calls it, where its input is the sum already, and its own residual."""
    return Alternative(way.name, lambda x, _: way.call(x, x), way.tensors, way.build_id)
