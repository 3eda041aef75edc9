"""Operators of all blocks of a vision transformer, one behind the other, with rotations and merges."""

from collections.abc import Iterator
from typing import Any

import torch

from ...kernels.cpu.program import Attention, Merge, Operator
from ..architectures.timm_models import type_name
from ..architectures.token_blocks import TokenBlock
from ..serving.fused.chains import NotFusable
from .biases import pair_bias
from .blocks import patch_of
from .heads import Angles
from .parallel import PARALLEL
from .transformer import block_operators


def vit_blocks(vit: Any, tokens: int, size: int, prefix: int) -> Iterator[Operator]:
    """The operators of all blocks, the first of which gets so many tokens, `prefix` of them in front of the patches."""
    shared = getattr(vit, "rel_pos_bias", None) or getattr(vit, "shared_rel_pos", None)
    bias = None if shared is None else pair_bias(shared)
    for place, block in enumerate(vit.blocks):
        name, parallel = f"blocks.{place}", PARALLEL.get(type_name(block))
        if parallel is not None:
            yield from parallel(block, name)
            continue
        merging = block.merging if isinstance(block, TokenBlock) else None
        first = isinstance(block, TokenBlock) and block.read is not None
        if isinstance(block, TokenBlock) and block.read not in (None, 1):
            raise NotFusable(f"its last block computes {block.read} tokens alone")
        angles = _angles(vit, place, size)
        attended, mlp = block_operators(block, name, angles, bias, first=first)
        yield from attended
        count = 0 if merging is None else merging.count(tokens - prefix)
        if merging is not None and count:
            attention = next(operator for operator in attended if isinstance(operator, Attention))
            yield Merge(attention.heads, attention.head_dim, prefix, count, merging.protect)
            tokens -= count
        yield from mlp


def _angles(vit: Any, place: int, size: int) -> Angles | None:
    """The rotary embeddings of a block, if it has them."""
    if (rope := getattr(vit, "rope", None)) is None:
        return None
    side, attn = size // patch_of(vit.patch_embed.proj), vit.blocks[place].attn
    with torch.no_grad():
        both = rope.get_embed(shape=[side, side])
    both = both[place] if getattr(vit, "rope_mixed", False) else both[None]
    sin, cos = both.chunk(2, -1)
    return Angles(sin, cos, bool(getattr(attn, "rotate_half", False)), int(attn.num_prefix_tokens))
