"""Converts between the two views of one feature map: tokens (B, N, C) and the square grid (B, C, h, w).

Both are free views when the grid is channels-last: a grid in NHWC memory *is* its tokens.
"""

from math import isqrt

from torch import Tensor


def tokens_to_grid(tokens: Tensor) -> Tensor:
    """(B, N, C) -> (B, C, h, w) with h = w = sqrt(N); a channels-last view.

    Raises:
        ValueError: N is not a square number.
    """
    batch, count, channels = tokens.shape
    side = isqrt(count)
    if side * side != count:
        raise ValueError(f"{count} tokens do not form a square grid: ViTAE takes square images only")
    return tokens.view(batch, side, side, channels).permute(0, 3, 1, 2)


def grid_to_tokens(grid: Tensor) -> Tensor:
    """(B, C, h, w) -> (B, h*w, C), row-major over the grid; a view when `grid` is channels-last."""
    return grid.flatten(2).transpose(1, 2)
