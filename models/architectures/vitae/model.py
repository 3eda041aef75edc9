"""ViTAE v1 has three stages of reduction and normal cells, mean pooling and a linear head.

Source: ViTAE (arXiv 2106.03348). Module names give the published state-dict keys: `layers.<stage>.RC...`,
`layers.<stage>.NC.<i>...`, `fc_norm`, `head`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .attention import init_linear
from .grid import tokens_to_grid
from .normal import NORMAL_NORM_EPS, NormalCell
from .reduction import EmbeddingReduction, PerformerReduction, PyramidOnlyReduction

REDUCTIONS = ("performer", "performer_less", "embedding", "none")


class Stage(nn.Module):
    """One reduction cell (`RC`) and its normal cells (`NC`)."""

    def __init__(self, reduction: nn.Module, cells: Sequence[nn.Module]) -> None:
        super().__init__()
        self.RC = reduction
        self.NC = nn.ModuleList(cells)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 3 and not isinstance(self.RC, nn.Identity):
            x = tokens_to_grid(x)
        x = self.RC(x)
        for cell in self.NC:
            x = cell(x)
        return x


class ViTAE(nn.Module):
    """ViTAE v1 classifier: normalised images (B, in_chans, H, W), H = W -> logits (B, num_classes).

    Args (lists are per stage):
        img_size: side in pixels; only the `embedding` reduction depends on it.
        reductions: kinds among `performer`, `performer_less`, `embedding`, `none`.
        embed_dims, token_dims, downsample, kernel_sizes, dilations: sizes of the reduction cells.
        depths, num_heads, mlp_ratio, groups: sizes of the normal cells.
        shallow: normal cells of kind `transformer_shallow` with a class token and a final norm (Base and larger).

    Raises:
        ValueError: lists of unequal length, unknown kinds, or widths that do not divide.
    """

    def __init__(
        self,
        *,
        num_classes: int = 1000,
        in_chans: int = 3,
        img_size: int = 224,
        reductions: Sequence[str] = ("performer", "performer", "performer_less"),
        embed_dims: Sequence[int],
        token_dims: Sequence[int],
        downsample: Sequence[int] = (4, 2, 2),
        kernel_sizes: Sequence[int] = (7, 3, 3),
        dilations: Sequence[Sequence[int]] = ((1, 2, 3, 4), (1, 2, 3), (1, 2)),
        depths: Sequence[int],
        num_heads: Sequence[int],
        mlp_ratio: float,
        groups: Sequence[int],
        shallow: bool = False,
    ) -> None:
        super().__init__()
        lists = reductions, embed_dims, token_dims, downsample, kernel_sizes, dilations, depths, num_heads, groups
        if len({len(values) for values in lists}) != 1:
            raise ValueError(f"per-stage lists of unequal length: {[len(values) for values in lists]}")
        # Registered before the stages: the published key order begins with it.
        self.fc_norm = nn.LayerNorm(token_dims[-1], eps=NORMAL_NORM_EPS) if shallow else nn.Identity()
        self.layers = nn.ModuleList()
        chans = in_chans
        for kind, embed_dim, dim, stride, kernel_size, dilation, depth, heads, group in zip(*lists, strict=True):
            reduction = _reduction(kind, chans, embed_dim, dim, stride, kernel_size, dilation, img_size)
            cells = [
                NormalCell(dim, heads, mlp_ratio, group, shallow=shallow, class_token=shallow) for _ in range(depth)
            ]
            self.layers.append(Stage(reduction, cells))
            chans = dim
        self.head = nn.Linear(token_dims[-1], num_classes)
        self.class_token = shallow
        self.apply(init_linear)

    def forward_features(self, images: Tensor) -> Tensor:
        """(B, in_chans, H, W) -> pooled features (B, token_dims[-1])."""
        x = images.contiguous(memory_format=torch.channels_last)
        for stage in self.layers:
            x = stage(x)
        if self.class_token:
            x = x[:, 1:]  # pooled over patches only
        return self.fc_norm(x.mean(dim=1))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.forward_features(images))


def _reduction(
    kind: str,
    in_chans: int,
    embed_dim: int,
    dim: int,
    downsample: int,
    kernel_size: int,
    dilations: Sequence[int],
    img_size: int,
) -> nn.Module:
    if kind == "performer":
        return PerformerReduction(in_chans, embed_dim, dim, downsample, kernel_size, dilations)
    if kind == "performer_less":
        return PyramidOnlyReduction(in_chans, embed_dim, dim, downsample, kernel_size, dilations)
    if kind == "embedding":
        return EmbeddingReduction(in_chans, dim, img_size, downsample)
    if kind == "none":
        return nn.Identity()
    raise ValueError(f"unknown reduction kind {kind!r}: must be one of {', '.join(REDUCTIONS)}")
