"""FusedBlock is a transformer block on compiled chains: one plan a batch bucket, with shared weights."""

from collections.abc import Mapping

from torch import Tensor, nn

from ....kernels.tuning.chain import CompiledChain
from ....kernels.tuning.tuner import bucket_of


class BucketedChain(nn.Module):
    """A chain with a plan for each batch bucket; a batch runs as the nearest bucket above does.

    It belongs to the device and dtype it was compiled for: moving the module does not move its weights.

    Args:
        compiled: chains by batch size; at least one.
    """

    def __init__(self, compiled: Mapping[int, CompiledChain]) -> None:
        super().__init__()
        if not compiled:
            raise ValueError("no compiled chain")
        self.compiled = dict(sorted(compiled.items()))
        # An attribute, so that memory accounting sees them; buckets of equal plans share tensors.
        found = {id(tensor): tensor for chain in self.compiled.values() for tensor in chain.tensors}
        self.tensors = tuple(found.values())

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        """x (B, N, C) and what the chain adds -> (B, N, C). Batches above the largest bucket run as that does."""
        largest = max(self.compiled)
        return self.compiled[bucket_of(min(len(x), largest), self.compiled)](x, residual)

    def extra_repr(self) -> str:
        return ", ".join(f"{batch}: {chain.plan}" for batch, chain in self.compiled.items())


class FusedBlock(nn.Module):
    """y = attention(x) + r, then y + mlp(y); r = x, or x + branch(x).

    Args:
        attention, mlp: chains of the two halves.
        residual: computes r from x; None where r = x.
    """

    def __init__(self, attention: BucketedChain, mlp: BucketedChain, residual: nn.Module | None = None) -> None:
        super().__init__()
        self.attention = attention
        self.mlp = mlp
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, N, C) -> (B, N, C)."""
        x = self.attention(x, x if self.residual is None else self.residual(x))
        return self.mlp(x, x)
