"""FusedBlock is a transformer block on compiled chains: one plan a batch bucket, with shared weights."""

from torch import Tensor, nn

from .alternatives import Bucketed


class FusedBlock(nn.Module):
    """y = attention(x) + r, then y + mlp(y); r = x, or x + branch(x).

    Args:
        attention: computes y from x and r, or y - r where the second half adds r.
        mlp: computes the second half from what the first one gives, and r.
        residual: computes r from x; None where r = x.
    """

    def __init__(self, attention: Bucketed, mlp: Bucketed, residual: nn.Module | None = None) -> None:
        super().__init__()
        self.attention = attention
        self.mlp = mlp
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, N, C) -> (B, N, C)."""
        residual = x if self.residual is None else self.residual(x)
        return self.mlp(self.attention(x, residual), residual)
