"""Merges similar tokens into one, so that the layers behind have fewer to compute.

Source: Token Merging (arXiv 2210.09461), section 3. Tokens are cut into two sets by turns; each of the first set finds
its most similar one in the second, and the most similar pairs become one token, the mean of all it stands for.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import quoted

MAX_BLOCK = 255
MAX_SHARE = 0.5
"""More than half cannot be merged at once: every merged token needs one of the other half."""
MAX_PROTECT = 1.0


@dataclass(frozen=True)
class TokenMerging:
    """Which blocks merge tokens, and how many. The last block of a model never does.

    A ViTAE's blocks are its normal cells with attention over all tokens. Each gives all tokens back, so the last may
    merge too.

    Args:
        start: the first block that merges, counted from 0. The first three blocks cost the most accuracy.
        every: distance between blocks that merge.
        share: share of the patch tokens that each of these blocks merges into others, above 0.
        protect: how strongly tokens that the class token attends to are kept: this times their number times their
            class attention is taken off their similarity. 0 for models without a class token.

    Raises:
        ValueError: names the value and its limits.
    """

    start: int = 3
    every: int = 2
    share: float = 0.22
    protect: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("start", 0), ("every", 1)):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= MAX_BLOCK:
                raise ValueError(f"merging: {name} {quoted(value)} must be a whole number from {least} to {MAX_BLOCK}")
        if not (_is_number(self.share) and 0 < self.share <= MAX_SHARE):
            raise ValueError(f"merging: share {quoted(self.share)} must be above 0 and at most {MAX_SHARE}")
        if not (_is_number(self.protect) and 0 <= self.protect <= MAX_PROTECT):
            raise ValueError(f"merging: protect {quoted(self.protect)} must be between 0 and {MAX_PROTECT:g}")

    def blocks(self, depth: int) -> range:
        """The blocks that merge, of a model of `depth` blocks."""
        return range(self.start, depth - 1, self.every)

    def count(self, patches: int) -> int:
        """How many of so many patch tokens one block merges into others; one of the first set always stays."""
        return max(0, min(round(self.share * patches), (patches - 1) // 2))


@dataclass(frozen=True)
class TokenPlan:
    """Which tokens a model computes: all of them where nothing is given.

    Args:
        merging: merge similar tokens between the blocks.
        class_last: in the last block compute the tokens that the head reads, and no others, from the attention on.
            Exact, except for rounding.
    """

    merging: TokenMerging | None = None
    class_last: bool = False

    def __bool__(self) -> bool:
        return self != ALL_TOKENS

    @property
    def summary(self) -> str:
        """One line: `22 % merged from block 3 on, every 2 blocks; the last block for the class token alone`."""
        said, merging = [], self.merging
        if merging is not None:
            kept = f", what the class token attends to kept ({merging.protect:g})" if merging.protect else ""
            often = "in every block" if merging.every == 1 else f"every {merging.every} blocks"
            said.append(f"{100 * merging.share:g} % merged from block {merging.start} on, {often}{kept}")
        said += ["the last block for the class token alone"] if self.class_last else []
        return "; ".join(said) or "all"

    @classmethod
    def from_dict(cls, values: Any) -> "TokenPlan":
        """Read the JSON form.

        Raises:
            ValueError: members missing or unknown, or values outside their limits.
        """
        _check_members("tokens", values, {f.name for f in fields(cls)})
        merging, class_last = values.get("merging"), values.get("class_last", False)
        if type(class_last) is not bool:
            raise ValueError(f"class_last {quoted(class_last)} must be true or false")
        if merging is not None:
            _check_members("merging", merging, {f.name for f in fields(TokenMerging)})
            merging = TokenMerging(**merging)
        return cls(merging, class_last)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; what is not used is left out."""
        merging = {} if self.merging is None else {"merging": asdict(self.merging)}
        return {**merging, **({"class_last": True} if self.class_last else {})}


ALL_TOKENS = TokenPlan()


def matched(keys: Tensor, importance: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Match every token of the first set (0, 2, 4, ...) with the most similar one of the second (1, 3, 5, ...).

    It computes in float32 whatever the model does: in bfloat16 many similarities would be equal.

    Args:
        keys: (B, M, C), what tokens are compared by, M >= 2.
        importance: (B, M), taken off the similarity of a token of the first set; nothing when None.

    Returns:
        Both int64 (B, ceil(M/2)): the first set, those to be merged first in front; and the place in the second set
        that each token of the first is most similar to, in the tokens' own order.
    """
    keys = F.normalize(keys.detach().float(), dim=-1)
    similarity, nearest = (keys[:, ::2] @ keys[:, 1::2].transpose(1, 2)).max(dim=-1)
    if importance is not None:
        similarity = similarity - importance.detach().float()[:, ::2]
    return similarity.topk(similarity.shape[1]).indices, nearest


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


def places(order: Tensor, nearest: Tensor, count: int, patches: int) -> Tensor:
    """The place of each of the patches among what `merged` gives behind the prefix: (B, patches) int64."""
    first, kept = order.shape[1], order.shape[1] - count
    # The inverse of a permutation, without a scatter.
    joins = order.topk(first, largest=False).indices < count
    own = (~joins).long().cumsum(dim=1) - 1
    second = torch.arange(kept, kept + first, device=order.device).expand_as(order)
    return torch.stack([torch.where(joins, kept + nearest, own), second], dim=2).flatten(1).narrow(1, 0, patches)


def log_sizes(size: Tensor, like: Tensor) -> Tensor:
    """What is added to attention scores (B, heads, N, N): a token that stands for n patches counts as n equal ones."""
    return size.log().to(like.dtype).transpose(1, 2).unsqueeze(1)


def rows(x: Tensor, index: Tensor) -> Tensor:
    """The rows (B, K, C) of x (B, N, C) that index (B, K) names, by one gather of whole rows."""
    first = torch.arange(x.shape[0], device=x.device)[:, None] * x.shape[1]
    return x.flatten(0, 1).index_select(0, (first + index).flatten()).view(-1, index.shape[1], x.shape[2])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _check_members(name: str, values: Any, known: set[str]) -> None:
    if not isinstance(values, Mapping):
        raise ValueError(f"{name} {quoted(values, 40)} must be an object")
    if unknown := sorted(set(values) - known):
        raise ValueError(f"{name}: unknown member {quoted(unknown[0])}: must be one of {', '.join(sorted(known))}")
