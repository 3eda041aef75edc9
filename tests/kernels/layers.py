"""Random layers of a chain for the tests of impls and of the tuner."""

import torch
from torch import Tensor

from milkweed.kernels.chain_ir import Add, ChainOp, Gelu, LayerNorm, Monarch


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values of a normal distribution over the root of the last dimension, the same for a seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=dtype) / shape[-1] ** 0.5


def monarch(
    width: int, out: int, *, bias: bool = True, nblocks: int = 2, dtype: torch.dtype = torch.float32
) -> Monarch:
    """A layer of fly's shapes; its factors are padded where the blocks do not divide the widths."""
    p, s = -(-width // nblocks), -(-out // nblocks)
    q = min(p, s)
    factors = normal(nblocks, q, p, seed=3, dtype=dtype), normal(nblocks, s, q, seed=4, dtype=dtype)
    return Monarch(*factors, normal(out, seed=5, dtype=dtype) if bias else None, width, out)


def mlp(nblocks: int = 4) -> list[ChainOp]:
    """Half of a block, of 64 features and 128 hidden ones: a norm, two Monarch layers, the residual."""
    norm = LayerNorm(normal(64, seed=1) + 1, normal(64, seed=2), 1e-6)
    return [norm, monarch(64, 128, nblocks=nblocks), Gelu(), monarch(128, 64, nblocks=nblocks), Add()]
