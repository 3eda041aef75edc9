"""Token merging and a ViT that uses it, written once more with loops over images, heads and tokens."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from milkweed.models.layers.token_plan import TokenMerging


def merged_by_loops(
    x: list[Tensor], size: list[float], keys: Tensor, taken_off: list[float], count: int, prefix: int
) -> tuple[list[Tensor], list[float]]:
    """Merge the tokens of one image: the prefix, what is left of the first set, the second set."""
    patches = range(len(x) - prefix)
    first, second = list(patches)[::2], list(patches)[1::2]
    units = [[value / math.hypot(*key) for value in key] for key in keys.tolist()]
    best: dict[int, tuple[float, int]] = {}
    for a in first:
        for b in second:
            similarity = sum(one * other for one, other in zip(units[a], units[b], strict=True))
            if a not in best or similarity > best[a][0]:
                best[a] = (similarity, b)
    ranked = sorted(first, key=lambda a: best[a][0] - taken_off[a], reverse=True)
    joined: dict[int, list[int]] = {b: [b] for b in second}
    for a in ranked[:count]:
        joined[best[a][1]].append(a)
    kept = [[a] for a in sorted(ranked[count:])]
    tokens, sizes = list(x[:prefix]), list(size[:prefix])
    for group in [*kept, *(joined[b] for b in second)]:
        weight = sum(size[prefix + i] for i in group)
        tokens.append(torch.stack([x[prefix + i] * size[prefix + i] for i in group]).sum(0) / weight)
        sizes.append(weight)
    return tokens, sizes


def block_by_loops(block: Any, x: Tensor, size: list[float], merging: TokenMerging | None, prefix: int) -> Any:
    """One block of a plain timm ViT or T2T-ViT on the tokens (N, C) of one image."""
    heads = block.attn.num_heads
    q, k, v = block.attn.qkv(block.norm1(x)).unflatten(-1, (3, heads, -1)).permute(1, 2, 0, 3).unbind(0)
    outputs, importance, logs = [], torch.zeros(len(x), dtype=x.dtype), torch.tensor(size, dtype=x.dtype).log()
    for head in range(heads):
        scores = q[head] @ k[head].T / math.sqrt(q.shape[-1]) + logs
        weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
        outputs.append(weights @ v[head])
        importance += weights[0] / heads
    x = x + block.attn.proj(torch.cat(outputs, -1))
    patches = len(x) - prefix
    if merging is not None and merging.count(patches):
        taken_off = (merging.protect * patches * importance[prefix:]).tolist()
        keys = k.mean(0)[prefix:]
        tokens, size = merged_by_loops(list(x), size, keys, taken_off, merging.count(patches), prefix)
        x = torch.stack(tokens)
    return x + block.mlp(block.norm2(x)), size


def cell_by_loops(cell: Any, x: Tensor, count: int) -> Tensor:
    """A normal cell of a plain ViTAE, but for the merging of `count` tokens, on the tokens (N, C) of one image."""
    prefix, heads = int(cell.class_token), cell.attn.num_heads
    side = math.isqrt(len(x) - prefix)
    branch = cell.PCM(x[prefix:].T.reshape(1, -1, side, side))[0].flatten(1).T
    plain = x + torch.cat([torch.zeros_like(x[:prefix]), branch])
    patches, ones = x[prefix:], [1.0] * len(x)
    shares, sizes = merged_by_loops(
        list(torch.eye(len(x), dtype=x.dtype)), ones, patches, [0.0] * len(patches), count, prefix
    )
    groups = [[i for i, share in enumerate(each.tolist()) if share] for each in shares]
    assert sorted(i for group in groups for i in group) == list(range(len(x)))
    few = torch.stack([x[group].mean(0) for group in groups])
    q, k, v = cell.attn.qkv(cell.norm1(few)).unflatten(-1, (3, heads, -1)).permute(1, 2, 0, 3).unbind(0)
    outputs = []
    for head in range(heads):
        weights = (q[head] @ k[head].T / math.sqrt(q.shape[-1])).exp() * torch.tensor(sizes, dtype=x.dtype)
        outputs.append(weights / weights.sum(-1, keepdim=True) @ v[head])
    y = cell.attn.proj(torch.cat(outputs, -1))
    y = y + cell.mlp(cell.norm2(torch.stack([plain[group].mean(0) for group in groups]) + y))
    for group, row in zip(groups, y, strict=True):
        for i in group:
            plain[i] = plain[i] + row
    return plain


def last_tokens(
    model: nn.Module, tokens: Tensor, merging: TokenMerging, prefix: int
) -> list[tuple[Tensor, list[float]]]:
    """What the last block of a plain model leaves of the tokens (B, N, C), and their sizes, by image."""
    found = []
    blocks: Any = model.get_submodule("blocks")
    merges = merging.blocks(len(blocks))
    for x in tokens:
        size = [1.0] * len(x)
        for i, block in enumerate(blocks):
            x, size = block_by_loops(block, x, size, merging if i in merges else None, prefix)
        found.append((x, size))
    return found
