"""Makes queries and keys of attention narrower: the best fit to their products on known inputs, head by head.

The product q^T k of two tokens x and y is x^T M y with M = Wq^T Wk. What all keys of an image share adds the same to
every score of a query, which softmax does not see; so keys count from their mean and have no bias. The error of the
products is then |S^1/2 (M - M') C^1/2|, with the second moments S of the queries' inputs and the covariance C of the
keys', and is least for the leading singular vectors.
"""

import torch
from torch import Tensor

from ...models.projection.statistics import InputStatistics


def narrower_products(
    q: tuple[Tensor, Tensor | None], k: Tensor, inputs: InputStatistics, qk_dim: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The weights of a head's queries, their bias and the weights of its keys, all float64.

    Args:
        q: weight (head_dim, C) and bias (head_dim,) of the head's queries.
        k: weight (head_dim, C) of its keys.
        scale: factor of the products; that of the narrower head is qk_dim^-0.5.
    """
    covariance, mean = inputs.covariance, inputs.mean
    weight, bias = q
    wide = weight.double()
    moments = covariance + mean.outer(mean)
    if bias is not None:  # an input that is always 1
        wide = torch.cat([wide, bias.double()[:, None]], 1)
        moments = torch.cat([torch.cat([moments, mean[:, None]], 1), torch.cat([mean, mean.new_ones(1)])[None]])
    (left, left_inverse), (right, right_inverse) = _roots(moments), _roots(covariance)
    u, values, v = torch.linalg.svd(left @ wide.T @ k.double() @ right)
    share = (values[:qk_dim] * scale * qk_dim**0.5).sqrt()
    queries = (left_inverse @ u[:, :qk_dim] * share).T
    keys = (right_inverse @ v[:qk_dim].T * share).T
    width = weight.shape[1]
    return queries[:, :width], queries[:, width:].sum(1), keys


def _roots(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The square root of a positive matrix, and its inverse; directions that hardly occur count as if they did."""
    values, vectors = torch.linalg.eigh(matrix)
    values = values.clamp_min(1e-6 * float(values[-1].clamp_min(torch.finfo(torch.float64).tiny)))
    return vectors * values.sqrt() @ vectors.T, vectors * values.rsqrt() @ vectors.T
