"""FusedBlock is a transformer block on compiled chains: one plan a batch bucket, with shared weights."""

from torch import Tensor, nn

from .alternatives import Bucketed


class FusedBlock(nn.Module):
    """y = attention(x) + r, then y + mlp(y); r = x, or x + branch(x).

    Args:
        attention, mlp: chains of the two halves.
        residual: computes r from x; None where r = x.
    """

    def __init__(self, attention: Bucketed, mlp: Bucketed, residual: nn.Module | None = None) -> None:
        super().__init__()
        self.attention = attention
        self.mlp = mlp
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, N, C) -> (B, N, C)."""
        x = self.attention(x, x if self.residual is None else self.residual(x))
        return self.mlp(x, x)
