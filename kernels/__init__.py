"""Functions on tensors: the Monarch product, how its factors are packed, and what runs it on a device."""

from .ops import decide, monarch_linear, packed_linear, packed_mlp
from .packing import PackedMonarch, pack_monarch
from .reference import monarch_reference, monarch_to_dense
from .shapes import MonarchShape

__all__ = [
    "MonarchShape",
    "PackedMonarch",
    "decide",
    "monarch_linear",
    "monarch_reference",
    "monarch_to_dense",
    "pack_monarch",
    "packed_linear",
    "packed_mlp",
]
