"""Encoded images to model input: guard, geometry, loaders. Knows no models and no HTTP.

Nothing heavy is imported before a name is used: who only looks at headers needs neither torch nor a decoder.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .base import Loader as Loader
    from .base import LoadResult as LoadResult
    from .cpu_loader import CpuLoader as CpuLoader
    from .errors import CODES as CODES
    from .errors import InputError as InputError
    from .guard import DEFAULT_LIMITS as DEFAULT_LIMITS
    from .guard import Limits as Limits
    from .guard import inspect as inspect
    from .info import FORMATS as FORMATS
    from .info import ImageInfo as ImageInfo
    from .pillow_loader import PillowLoader as PillowLoader
    from .select import LOADERS as LOADERS
    from .select import create_loader as create_loader
    from .spec import Geometry as Geometry
    from .spec import PreprocessSpec as PreprocessSpec
    from .spec import geometry as geometry

_HOMES = {
    "base": ("LoadResult", "Loader"),
    "cpu_loader": ("CpuLoader",),
    "errors": ("CODES", "InputError"),
    "guard": ("DEFAULT_LIMITS", "Limits", "inspect"),
    "info": ("FORMATS", "ImageInfo"),
    "pillow_loader": ("PillowLoader",),
    "select": ("LOADERS", "create_loader"),
    "spec": ("Geometry", "PreprocessSpec", "geometry"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
