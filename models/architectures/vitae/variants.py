"""The published configurations, as keyword arguments: seven of ViTAE v1 for `ViTAE`, three of ViTAEv2 for `ViTAEv2`.

Source: ViTAE (arXiv 2106.03348), table 1; ViTAEv2 (arXiv 2202.10108); the names are those of the published entry
points in lower case.
"""

from typing import Any


def _small(token_dim: int, embed_dim: int, depth: int, heads: int) -> dict[str, Any]:
    """Arguments of Tiny, 6M, 13M: two performer cells of width 64, then one stage of normal cells."""
    return {
        "embed_dims": (64, 64, embed_dim),
        "token_dims": (64, 64, token_dim),
        "depths": (0, 0, depth),
        "num_heads": (1, 1, heads),
        "mlp_ratio": 2,
        "groups": (1, 1, 64),
    }


def _large(dim: int, depth: int, heads: int) -> dict[str, Any]:
    """Arguments of Base, Large, Huge: a patch embedding, then normal cells of kind `transformer_shallow`."""
    return {
        "reductions": ("embedding", "none", "none"),
        "embed_dims": (dim, dim, dim),
        "token_dims": (dim, dim, dim),
        "downsample": (16, 1, 1),
        "depths": (0, 0, depth),
        "num_heads": (1, 1, heads),
        "mlp_ratio": 4,
        "groups": (1, 1, dim // 4),
        "shallow": True,
    }


VITAE_VARIANTS: dict[str, dict[str, Any]] = {
    "vitae_basic_tiny": _small(256, 128, 7, 4),
    "vitae_basic_6m": _small(256, 128, 10, 4),
    # The published entry point is called 13M; it has 10.8 M parameters.
    "vitae_basic_13m": _small(320, 160, 11, 5),
    "vitae_basic_small": {
        "embed_dims": (64, 64, 192),
        "token_dims": (96, 192, 384),
        "depths": (0, 0, 14),
        "num_heads": (1, 1, 6),
        "mlp_ratio": 3,
        "groups": (1, 1, 96),
    },
    "vitae_basic_base": _large(768, 12, 12),
    "vitae_basic_large": _large(1024, 24, 16),
    "vitae_basic_huge": _large(1280, 32, 16),
}

VITAE_V2_VARIANTS: dict[str, dict[str, Any]] = {
    "vitaev2_s": {
        "embed_dims": (64, 64, 128, 256),
        "token_dims": (64, 128, 256, 512),
        "depths": (2, 2, 8, 2),
        "num_heads": (1, 2, 4, 8),
        "reduction_heads": (1, 1, 2, 4),
    },
    "vitaev2_48m": {
        "embed_dims": (64, 64, 192, 384),
        "token_dims": (96, 192, 384, 768),
        "depths": (2, 2, 11, 2),
        "num_heads": (1, 2, 4, 8),
        "reduction_heads": (1, 1, 2, 4),
    },
    "vitaev2_b": {
        "embed_dims": (96, 96, 256, 512),
        "token_dims": (128, 256, 512, 1024),
        "depths": (2, 2, 12, 2),
        "num_heads": (1, 4, 8, 16),
        "reduction_heads": (1, 1, 4, 8),
    },
}
