"""Merges similar tokens into one, so that the layers behind have fewer to compute.

Source: Token Merging (arXiv 2210.09461), section 3. Tokens are cut into two sets by turns; each of the first set finds
its most similar one in the second, and the most similar pairs become one token, the mean of all it stands for.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def matched(keys: Tensor, importance: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Match every token of the first set (0, 2, 4, ...) with the most similar one of the second (1, 3, 5, ...).

    It computes in float32 whatever the model does: in bfloat16 many similarities would be equal.

    Args:
        keys: (B, M, C), what tokens are compared by, M >= 2.
        importance: (B, M), taken off the similarity of a token of the first set; nothing when None.

    Returns:
        Both int64 (B, ceil(M/2)): the first set, those to be merged first in front, equally similar ones in their own
        order; and the place in the second set that each of the first set is most similar to, in the tokens' own order.
    """
    keys = F.normalize(keys.detach().float(), dim=-1)
    similarity, nearest = (keys[:, ::2] @ keys[:, 1::2].transpose(1, 2)).max(dim=-1)
    if importance is not None:
        similarity = similarity - importance.detach().float()[:, ::2]
    if torch.compiler.is_exporting():  # ONNX has no stable sort, and its TopK keeps the order of equal ones
        return similarity.topk(similarity.shape[1]).indices, nearest
    return similarity.sort(dim=1, descending=True, stable=True).indices, nearest


def merged(
    x: Tensor, size: Tensor | None, order: Tensor, nearest: Tensor, count: int, prefix: int
) -> tuple[Tensor, Tensor]:
    """Merge the first `count` tokens of `order` into their nearest ones: means, weighted by the tokens' sizes.

    There is no scatter: what merges is summed by a product with a matrix of zeros and ones.

    Args:
        x: tokens (B, N, C).
        size: float32 (B, N, 1), how many patches each token stands for; None: one each. A tensor of ones would be a
            constant of an exported graph, which OpenVINO fuses in other ways, with other last bits, for other batches.
        count: at least 1, and less than `order` has.
        order, nearest: as `matched` gives them for the tokens behind the first `prefix`, which stay as they are.

    Returns:
        Tokens (B, N - count, C): the prefix, what is left of the first set, the second set; and their sizes.
    """
    merging, kept = order.split([count, order.shape[1] - count], dim=1)
    target = rows(nearest.unsqueeze(-1), merging).transpose(1, 2)  # (B, 1, count)
    source = prefix + 2 * merging
    # In their own order: by similarity, rounding would decide which tokens are in which set at the next merge.
    kept = prefix + 2 * kept.topk(kept.shape[1], largest=False).values
    into = x[:, prefix + 1 :: 2]
    joins = (target == torch.arange(into.shape[1], device=x.device)[:, None]).float()  # (B, targets, count)
    if size is None:
        stays = torch.ones_like(x[:, : prefix + kept.shape[1], :1], dtype=torch.float32)
        total = 1 + joins.sum(dim=-1, keepdim=True)
        share = 1 / total
    else:
        stays = torch.cat([size.narrow(1, 0, prefix), rows(size, kept)], dim=1)
        joins = joins * rows(size, source).transpose(1, 2)
        total = size[:, prefix + 1 :: 2] + joins.sum(dim=-1, keepdim=True)
        share = size[:, prefix + 1 :: 2] / total
    means = into * share.to(x.dtype) + (joins / total).to(x.dtype) @ rows(x, source)
    return torch.cat([x.narrow(1, 0, prefix), rows(x, kept), means], dim=1), torch.cat([stays, total], dim=1)


def merge_by_keys(
    x: Tensor, q: Tensor, k: Tensor, size: Tensor | None, count: int, prefix: int, protect: float
) -> tuple[Tensor, Tensor]:
    """Merge tokens (B, N, C) by the mean over heads of their keys: `matched`, then `merged`.

    Args:
        q, k, protect: as `class_importance` takes them, with protect 0 for none.
    """
    importance = class_importance(q, k, size, protect, prefix) if protect else None
    return merged(x, size, *matched(k.mean(dim=1)[:, prefix:], importance), count, prefix)


def class_importance(q: Tensor, k: Tensor, size: Tensor | None, protect: float, prefix: int) -> Tensor:
    """What the class token's attention takes off the similarity of each patch token: (B, patches) float32.

    Args:
        q, k: scaled queries and keys (B, heads, N, head_dim).
        size: (B, N, 1), or None: all 1.
        protect: this times the number of patch tokens times the mean attention of the heads.
    """
    scores = q[:, :, :1].detach() @ k.detach().transpose(-1, -2)
    attention = (scores if size is None else scores + log_sizes(size, q)).float().softmax(dim=-1)
    return protect * (k.shape[2] - prefix) * attention.mean(dim=1)[:, 0, prefix:]


def places(order: Tensor, nearest: Tensor, count: int, patches: int) -> Tensor:
    """The place of each of the patches among what `merged` gives behind the prefix: (B, patches) int64."""
    first, kept = order.shape[1], order.shape[1] - count
    # The inverse of a permutation, without a scatter.
    joins = order.topk(first, largest=False).indices < count
    places = (~joins).long().cumsum(dim=1) - 1
    second = torch.arange(kept, kept + first, device=order.device).expand_as(order)
    return torch.stack([torch.where(joins, kept + nearest, places), second], dim=2).flatten(1).narrow(1, 0, patches)


def unmerged(x: Tensor, size: Tensor, count: int) -> Tensor:
    """Repeat tokens (B, M, C) by their sizes (B, M, 1), of which `count` is the sum: (B, count, C)."""
    ends = size.cumsum(dim=1)
    return rows(x, (torch.arange(count, dtype=ends.dtype, device=x.device) >= ends).sum(dim=1))


def log_sizes(size: Tensor, like: Tensor) -> Tensor:
    """What is added to attention scores (B, heads, N, N): a token that stands for n patches counts as n equal ones."""
    return size.log().to(like.dtype).transpose(1, 2).unsqueeze(1)


def rows(x: Tensor, index: Tensor) -> Tensor:
    """The rows (B, K, C) of x (B, N, C) that index (B, K) names, by one gather of whole rows."""
    first = torch.arange(x.shape[0], device=x.device)[:, None] * x.shape[1]
    return x.flatten(0, 1).index_select(0, (first + index).flatten()).view(-1, index.shape[1], x.shape[2])
