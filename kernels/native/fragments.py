"""The order in which a warp holds a matrix in registers, as the right operands of tensor core instructions.

A piece is 16x16: two n8 tiles of mma.m16n8k16. Lane 4g + t holds W[n + g, k + 2t + e] with (n, k) = (0, 0), (0, 8),
(8, 0), (8, 8) and e = 0, 1, in that order: 16 neighbouring bytes.
"""

from torch import Tensor

_ORDER = (-7, -4, -5, -2, -6, -3, -1)
_BACK = (-7, -3, -5, -6, -2, -4, -1)


def fragments(w: Tensor) -> Tensor:
    """Cut (..., N, K) into pieces: (..., N/16, K/16, 32, 8)."""
    pieces = w.unflatten(-1, (-1, 2, 4, 2)).unflatten(-5, (-1, 2, 8))  # N/16, n, g, K/16, k, t, e
    return _moved(pieces, _ORDER).flatten(-3).flatten(-3, -2).contiguous()  # N/16, K/16, g, t, n, k, e


def matrix_of(pieces: Tensor) -> Tensor:
    """Return the matrix of `fragments`."""
    pieces = pieces.unflatten(-2, (8, 4)).unflatten(-1, (2, 2, 2))  # N/16, K/16, g, t, n, k, e
    return _moved(pieces, _BACK).flatten(-4).flatten(-4, -2)  # N/16, n, g, K/16, k, t, e


def _moved(pieces: Tensor, order: tuple[int, ...]) -> Tensor:
    dims = pieces.dim()
    return pieces.permute(*range(dims - 7), *(dims + axis for axis in order))
