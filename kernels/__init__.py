"""Functions on tensors: the Monarch product, how its factors are packed, and what runs it on a device.

A name's module is imported when the name is first used, since `kernels.cpu` needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .ops import decide as decide
    from .ops import monarch_linear as monarch_linear
    from .ops import packed_linear as packed_linear
    from .ops import packed_mlp as packed_mlp
    from .packing import PackedMonarch as PackedMonarch
    from .packing import pack_monarch as pack_monarch
    from .reference import monarch_reference as monarch_reference
    from .reference import monarch_to_dense as monarch_to_dense
    from .shapes import MonarchShape as MonarchShape

_HOMES = {
    "ops": ("decide", "monarch_linear", "packed_linear", "packed_mlp"),
    "packing": ("PackedMonarch", "pack_monarch"),
    "reference": ("monarch_reference", "monarch_to_dense"),
    "shapes": ("MonarchShape",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
