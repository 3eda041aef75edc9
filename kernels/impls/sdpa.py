"""PyTorch's attention with a given backend, since the one that PyTorch prefers is not always the fastest."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..attention import sdpa_attention, split_heads
from ..chain_ir import ChainOp, Problem, SelfAttention
from .base import OTHER_KIND, Runner


@dataclass(frozen=True)
class SdpaImpl:
    """Runs an attention alone, on CUDA.

    Args:
        backend: the backend that it uses, as `sdpa_attention` names it.
        serves: the backend's function torch.backends.cuda.can_use_..._attention.
    """

    backend: str
    serves: Callable[[Any, bool], bool]

    @property
    def name(self) -> str:
        return f"sdpa_{self.backend}"

    def refuses(self, segment: Sequence[ChainOp], problem: Problem) -> str | None:
        if len(segment) != 1 or not isinstance(segment[0], SelfAttention):
            return OTHER_KIND
        if problem.device.type != "cuda":
            return f"no choice of backends on {problem.device.type}"
        if not self.serves(_parameters(segment[0], problem), False):
            return f"PyTorch's {self.backend} attention does not take this shape and dtype on this device"
        return None

    def build(self, segment: Sequence[ChainOp], problem: Problem) -> Runner:
        (attention,) = segment
        assert isinstance(attention, SelfAttention)

        def call(qkv: Tensor, log_sizes: Tensor | None) -> Tensor:
            sizes = attention.sizes(log_sizes)
            return sdpa_attention(qkv, attention.num_heads, attention.scale, self.backend, sizes)

        return Runner(call)


def sdpa_impls() -> list[SdpaImpl]:
    """Return one impl for each backend."""
    cuda = torch.backends.cuda
    return [
        SdpaImpl("cudnn", cuda.can_use_cudnn_attention),
        SdpaImpl("flash", cuda.can_use_flash_attention),
        SdpaImpl("efficient", cuda.can_use_efficient_attention),
    ]


def _parameters(attention: SelfAttention, problem: Problem) -> Any:
    """Return what the backends decide by: q, k and v of one image, without values."""
    width = 3 * attention.num_heads * attention.head_dim
    qkv = torch.empty(1, problem.tokens, width, dtype=problem.dtype, device=problem.device)
    q, k, v = split_heads(qkv, attention.num_heads)
    mask = qkv.new_empty(1, 1, 1, problem.tokens) if attention.sized else None
    return torch.backends.cuda.SDPAParams(q, k, v, mask, 0.0, False, False)
