"""Blocks that merge tokens or know their sizes, on chains of their own numbers of tokens."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....kernels.attention import merge_heads, split_heads
from ....kernels.chain_ir import Problem, SelfAttention
from ....kernels.impls.triton import triton_build
from ....kernels.triton.merging import SPLITS, merge_refusal, merge_tokens
from ....kernels.triton.token_merging import matched, merge_by_keys, merged, places, rows
from ...architectures.token_blocks import TokenBlock
from ...architectures.vitae.attention import attend
from ...hooks import hooked
from .alternatives import Alternative, Part, joined
from .device_kernels import DeviceKernels


class FusedTokenBlock(nn.Module):
    """A TokenBlock on chains: tokens (B, N, C) and their sizes (B, N, 1) in and out, None while all sizes are 1.

    Args:
        tokens: N, which the chains were chosen for.
        sized: whether the block gets sizes.
        qkv: norm and qkv.
        attention: computes all queries from qkv and the logarithms of the sizes, or the first ones.
        proj: projection and addition of the tokens that attention computed.
        mlp: the block's second half, from what `proj` or `merge` gives.
        merge: merges tokens by their keys; None where none merge.
        read: number of tokens that attention computes, from the first on; None for all.
    """

    knows_sizes = True

    def __init__(
        self,
        tokens: int,
        sized: bool,
        qkv: nn.Module,
        attention: nn.Module,
        proj: nn.Module,
        mlp: nn.Module,
        merge: nn.Module | None = None,
        read: int | None = None,
    ) -> None:
        super().__init__()
        self.tokens, self.sized, self.read = tokens, sized, read
        self.qkv, self.attention, self.proj, self.merge, self.mlp = qkv, attention, proj, merge, mlp

    def forward(self, x: Tensor, size: Tensor | None) -> tuple[Tensor, Tensor | None]:
        check_tokens(x, self.tokens)
        if (size is not None) != self.sized:
            raise ValueError(f"tokens with{'out' * self.sized} sizes: the plans of this block were made for others")
        qkv = self.qkv(x)
        y = self.attention(qkv) if size is None else self.attention(qkv, log_of(size))
        residual = x if self.read is None else x.narrow(1, 0, self.read)
        x = self.proj(y, residual)
        if self.merge is not None:
            residual = x
            x, size = self.merge(x, qkv) if size is None else self.merge(x, qkv, size)
        return self.mlp(x, residual), size


class FirstTokens(nn.Module):
    """Attention of the first tokens alone, in PyTorch: packed qkv (B, N, 3 C) -> (B, read, C)."""

    def __init__(self, attention: SelfAttention, read: int) -> None:
        super().__init__()
        self.heads, self.scale, self.read = attention.num_heads, attention.scale, read

    def forward(self, qkv: Tensor, log_sizes: Tensor | None = None) -> Tensor:
        q, k, v = split_heads(qkv, self.heads)
        mask = None if log_sizes is None else log_sizes.to(qkv.dtype)[:, None, None]
        return merge_heads(attend(q.narrow(2, 0, self.read), k, v, self.scale, mask))


class MergeTokens(nn.Module):
    """Merging in PyTorch: tokens (B, N, C), packed qkv and sizes (B, N, 1) -> what is left, and its sizes."""

    def __init__(self, attention: SelfAttention, width: int, protect: float, count: int, prefix: int) -> None:
        super().__init__()
        self.attention, self.width, self.protect, self.count, self.prefix = attention, width, protect, count, prefix

    def forward(self, x: Tensor, qkv: Tensor, size: Tensor | None = None) -> tuple[Tensor, Tensor]:
        q, k, _ = split_heads(qkv, self.attention.num_heads)
        return merge_by_keys(x, q[:, :, :1] * self.attention.scale, k, size, self.count, self.prefix, self.protect)


class MergePart(Part):
    """The ways to merge the tokens of a block: Triton's kernel and PyTorch."""

    kind, family = "merge", "triton_merge"

    def __init__(self, plain: MergeTokens, kernels: DeviceKernels, *, sized: bool) -> None:
        super().__init__(plain, kernels)
        self._merge, self._sized = plain, sized

    def describe(self) -> str:
        merge, attention = self._merge, self._merge.attention
        keys = f"{attention.num_heads}x{attention.head_dim}"
        protect = f",protect {merge.protect:g}" if merge.protect else ""
        return f"merge({merge.width},{merge.count},{merge.prefix},keys {keys}{protect}{',sizes' * self._sized})"

    def refusal(self, problem: Problem) -> str | None:
        merge = (problem.tokens, self._merge.prefix, self._merge.count)
        return merge_refusal(*merge, problem.dtype, problem.device, on_cpu=self.kernels.refusal is None)

    def native_ways(self, problem: Problem) -> list[Alternative]:
        build = triton_build()
        return [Alternative(f"{self.family}:{tile}", self._native(tile), (), build) for tile in range(len(SPLITS))]

    def input_widths(self) -> tuple[int, ...]:
        attention = self._merge.attention
        return self._merge.width, 3 * attention.num_heads * attention.head_dim

    def truth(self, problem: Problem) -> tuple[tuple[Tensor, ...], Tensor]:
        """Random inputs, and what PyTorch gives in their dtype: with keys of another dtype, others would merge."""
        inputs = self.random_inputs(problem)
        if self._sized:
            sizes = torch.arange(problem.tokens, device=problem.device).remainder(5).add(1).float()
            inputs = (*inputs, sizes.expand(problem.batch, -1)[..., None].contiguous())
        return inputs, joined(self._merge(*inputs))

    def _native(self, tile: int) -> Callable[..., tuple[Tensor, Tensor]]:
        merge = self._merge

        def call(x: Tensor, qkv: Tensor, size: Tensor | None = None) -> tuple[Tensor, Tensor]:
            how = merge.attention.num_heads, merge.count, merge.prefix, merge.protect, merge.attention.scale
            return merge_tokens(x.contiguous(), qkv.contiguous(), size, *how, tile)

        return call


class FusedMergingCell(nn.Module):
    """A MergingCell on chains, with merging and giving back in PyTorch: tokens (B, N, dim) in and out.

    Args:
        tokens, count, prefix: N, how many of them merge, and how many in front never do.
        residual: computes x + branch(x) of all tokens.
        attention: norm, qkv, attention and projection of what is left, which knows sizes; nothing is added.
        mlp: norm and MLP of what is left; nothing is added.
    """

    def __init__(
        self, tokens: int, count: int, prefix: int, residual: nn.Module, attention: nn.Module, mlp: nn.Module
    ) -> None:
        super().__init__()
        self.tokens, self.count, self.prefix = tokens, count, prefix
        self.residual, self.attention, self.mlp = residual, attention, mlp

    def forward(self, x: Tensor) -> Tensor:
        check_tokens(x, self.tokens)
        residual = self.residual(x)
        order, nearest = matched(x[:, self.prefix :])
        both, size = merged(torch.cat([x, residual], dim=-1), None, order, nearest, self.count, self.prefix)
        few, few_residual = both.chunk(2, dim=-1)
        y = self.attention(few, log_of(size))
        y = y + self.mlp(few_residual + y)
        place = places(order, nearest, self.count, self.tokens - self.prefix) + self.prefix
        return residual + rows(y, F.pad(place, (self.prefix, 0)))


def check_tokens(x: Tensor, tokens: int) -> None:
    """Raise ValueError where an image has another number of tokens than the plans were made for."""
    if x.shape[1] != tokens:
        raise ValueError(f"{x.shape[1]} tokens an image: the plans of this block were made for {tokens}")


def log_of(size: Tensor) -> Tensor:
    """Sizes (B, N, 1) as attention takes them, (B, N)."""
    return size.log().squeeze(-1)


def token_counts(model: nn.Module, image_size: int) -> tuple[dict[nn.Module, int], set[nn.Module]]:
    """Number of output tokens for one image of each module that runs and gives tokens (B, N, C), or those and more.

    Returns:
        The numbers, and the modules that get sizes of tokens.
    """
    modules, counts, sized = dict(model.named_modules()), dict[nn.Module, int](), set[nn.Module]()

    def note(name: str, inputs: tuple[Any, ...], output: Any) -> None:
        if isinstance(modules[name], TokenBlock) and inputs[1] is not None:
            sized.add(modules[name])
        output = output[0] if isinstance(output, tuple) else output
        if isinstance(output, Tensor) and output.dim() == 3:
            counts[modules[name]] = output.shape[1]

    with hooked(model, modules, note):
        model(torch.zeros(1, 3, image_size, image_size))
    return counts, sized
