"""The normal cell of ViTAE v1 and v2: attention and a grouped-convolution branch in parallel, then an MLP.

Source: ViTAE (arXiv 2106.03348), section 3.3; ViTAEv2 (arXiv 2202.10108). Both branches read the same un-normalised
tokens; attention normalises them itself. State-dict keys are those of the published checkpoints.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from .attention import Mlp, MultiHeadAttention, WindowAttention
from .grid import grid_to_tokens, tokens_to_grid

# Eps of the norms in normal cells and of the final norm; reduction cells use 1e-5.
NORMAL_NORM_EPS = 1e-6


def _parallel_branch(dim: int, hidden_dim: int, groups: int, shallow: bool, last_activation: bool) -> nn.Sequential:
    """PCM of a normal cell: grouped 3x3 convolutions dim -> hidden -> dim, and once more unless `shallow`."""
    layers: list[nn.Module] = [
        nn.Conv2d(dim, hidden_dim, 3, 1, 1, groups=groups),
        nn.BatchNorm2d(hidden_dim),
        nn.SiLU(),
        nn.Conv2d(hidden_dim, dim, 3, 1, 1, groups=groups),
    ]
    if not shallow:
        layers += [nn.BatchNorm2d(dim), nn.SiLU(), nn.Conv2d(dim, dim, 3, 1, 1, groups=groups)]
        layers += [nn.SiLU()] if last_activation else []
    return nn.Sequential(*layers)


class NormalCell(nn.Module):
    """x + Attn(LN(x)) + PCM(x), then x + MLP(LN(x)); tokens (B, N, dim) in and out.

    Args:
        groups: groups of the branch's convolutions.
        shallow: the branch of kind `transformer_shallow` (Base and larger).
        class_token: the first token is the class token; the branch leaves it alone.
        last_activation: SiLU after the branch's last convolution, which v1 has and v2 has not.
        window_size: side of the attention's windows; attention over all tokens when None.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        mlp_ratio: float,
        groups: int,
        *,
        shallow: bool = False,
        class_token: bool = False,
        last_activation: bool = True,
        window_size: int | None = None,
    ) -> None:
        super().__init__()
        hidden_dim = int(dim * mlp_ratio)
        self.class_token = class_token
        self.norm1 = nn.LayerNorm(dim, eps=NORMAL_NORM_EPS)
        self.attn: MultiHeadAttention = (
            MultiHeadAttention(dim, dim, num_heads)
            if window_size is None
            else WindowAttention(dim, dim, num_heads, window_size=window_size)
        )
        self.norm2 = nn.LayerNorm(dim, eps=NORMAL_NORM_EPS)
        self.mlp = Mlp(dim, hidden_dim)
        self.PCM = _parallel_branch(dim, hidden_dim, groups, shallow, last_activation)

    def _branch(self, x: Tensor) -> Tensor:
        """PCM over the patch tokens, zero for the class token."""
        if not self.class_token:
            return grid_to_tokens(self.PCM(tokens_to_grid(x)))
        patches = grid_to_tokens(self.PCM(tokens_to_grid(x[:, 1:].contiguous())))
        return F.pad(patches, (0, 0, 1, 0))

    def forward(self, x: Tensor) -> Tensor:
        branch = self._branch(x)
        x = x + self.attn(self.norm1(x)) + branch
        return x + self.mlp(self.norm2(x))
