"""Layers told apart for a person: the part of a block, the block, the structure in a few words."""

import re
from collections import Counter
from collections.abc import Sequence

from .document import LayerRow

MOST_PARTS = 5
"""Parts with a name of their own; the rarer ones are together "other"."""


def layer_parts(rows: Sequence[LayerRow]) -> dict[str, str]:
    """What part of a block each layer is: the last word of its name, "other" for the rarer ones."""
    counts = Counter(_last(row.name) for row in rows)
    # Counter keeps the order of first appearance, and sorting keeps it among equals.
    often = sorted(counts, key=lambda word: -counts[word])[:MOST_PARTS]
    return {row.name: _last(row.name) if _last(row.name) in often else "other" for row in rows}


def block(name: str) -> str:
    """A layer's name up to its last number: `blocks.3` of `blocks.3.attn.qkv`; empty where it has none."""
    found = re.match(r"(?:.*\.)?\d+(?=\.)", name)
    return found[0] if found else ""


def shared_stem(names: Sequence[str]) -> str:
    """What all names begin with, up to and with a full stop: `blocks.`."""
    if not names:
        return ""
    first, last = min(names), max(names)
    same = next((place for place, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[: first.rfind(".", 0, same) + 1]


def structure_text(row: LayerRow) -> str:
    """What a layer is now, in a few words: `monarch, 2 blocks, rank 96`."""
    blocks = f", {row.nblocks} block{'' if row.nblocks == 1 else 's'}" if row.nblocks is not None else ""
    rank = f", rank {row.rank}" if row.rank is not None else ""
    return f"{row.kind}{blocks}{rank}"


def kept_dense(rows: Sequence[LayerRow]) -> dict[str, list[str]]:
    """Names of the layers that were kept dense, by the reason."""
    kept: dict[str, list[str]] = {}
    for row in rows:
        if row.kind == "dense":
            kept.setdefault(row.reason or "no reason on record", []).append(row.name)
    return kept


def _last(name: str) -> str:
    return name.rpartition(".")[2]
