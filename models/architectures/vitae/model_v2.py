"""ViTAEv2 has four stages of reduction and normal cells, the first two with window attention, and a linear head.

Source: ViTAEv2 (arXiv 2202.10108). Module names give the published state-dict keys: `layers.<stage>.RC...`,
`layers.<stage>.NC.<i>...`, `head`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .attention import init_linear
from .model import Stage
from .normal import NormalCell
from .reduction import TransformerReduction

DOWNSAMPLE = (4, 2, 2, 2)
KERNEL_SIZES = (7, 3, 3, 3)
DILATIONS = ((1, 2, 3, 4), (1, 2, 3), (1, 2), (1, 2))
WINDOW_SIZES = (7, 7, None, None)
"""Window sizes by stage; None is attention over all tokens."""


class ViTAEv2(nn.Module):
    """ViTAEv2 classifier: normalised images (B, in_chans, H, W), H = W -> logits (B, num_classes).

    No tensor depends on the image size: one checkpoint serves every square image of 4n or 4n - 1 px, for which both
    branches of the first cell give equally many tokens.

    Args (lists are per stage, of four):
        img_size: side in pixels that images are prepared for.
        embed_dims, reduction_heads, reduction_groups: sizes of the reduction cells.
        token_dims: width of both kinds of cells.
        depths, num_heads, mlp_ratio, groups: sizes of the normal cells.

    Raises:
        ValueError: lists of another length, widths that do not divide, or a side that is not 4n or 4n - 1.
    """

    def __init__(
        self,
        *,
        num_classes: int = 1000,
        in_chans: int = 3,
        img_size: int = 224,
        embed_dims: Sequence[int],
        token_dims: Sequence[int],
        depths: Sequence[int],
        num_heads: Sequence[int],
        reduction_heads: Sequence[int],
        mlp_ratio: float = 4,
        groups: Sequence[int] = (1, 32, 64, 128),
        reduction_groups: Sequence[int] = (1, 16, 32, 64),
    ) -> None:
        super().__init__()
        lists = (embed_dims, token_dims, depths, num_heads, reduction_heads, groups, reduction_groups)
        if any(len(values) != len(DOWNSAMPLE) for values in lists):
            raise ValueError(f"per-stage lists of {[len(values) for values in lists]} items: must be {len(DOWNSAMPLE)}")
        _check_size(img_size, img_size)
        self.layers = nn.ModuleList()
        chans = in_chans
        for i, window in enumerate(WINDOW_SIZES):
            dim = token_dims[i]
            sizes = (embed_dims[i], dim, DOWNSAMPLE[i], KERNEL_SIZES[i], DILATIONS[i])
            reduction = TransformerReduction(chans, *sizes, reduction_heads[i], reduction_groups[i], window)
            cells = [
                NormalCell(dim, num_heads[i], mlp_ratio, groups[i], last_activation=False, window_size=window)
                for _ in range(depths[i])
            ]
            self.layers.append(Stage(reduction, cells))
            chans = dim
        self.head = nn.Linear(token_dims[-1], num_classes)
        self.apply(init_linear)

    def forward_features(self, images: Tensor) -> Tensor:
        """(B, in_chans, H, W) -> pooled features (B, token_dims[-1])."""
        _check_size(images.shape[-2], images.shape[-1])
        x = images.contiguous(memory_format=torch.channels_last)
        for stage in self.layers:
            x = stage(x)
        return x.mean(dim=1)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.forward_features(images))


def _check_size(height: int, width: int) -> None:
    """Refuse other sizes: the pyramid gives floor((side + 1) / 4) rows, the branch ceil(side / 4)."""
    if height != width or height % DOWNSAMPLE[0] in (1, 2) or height < 1:
        raise ValueError(f"image {height}x{width}: ViTAEv2 takes square images of 4n or 4n - 1 px")
