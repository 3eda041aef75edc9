"""Pure functions on tensors: the Monarch product, its packing and its dispatch. Knows no model, file or HTTP."""

from .dispatch import Decision, decide
from .ops import monarch_linear, packed_linear, packed_mlp
from .packing import PackedMonarch, pack_monarch
from .reference import monarch_reference, monarch_to_dense
from .shapes import MonarchShape

__all__ = [
    "Decision",
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
