"""Encoded images to model input: guard, geometry, loaders. Knows no models and no HTTP."""

from .base import Loader, LoadResult
from .cpu_loader import CpuLoader
from .errors import CODES, InputError
from .guard import DEFAULT_LIMITS, Limits, inspect
from .info import FORMATS, ImageInfo
from .pillow_loader import PillowLoader
from .select import LOADERS, create_loader
from .spec import Geometry, PreprocessSpec, geometry

__all__ = [
    "CODES",
    "DEFAULT_LIMITS",
    "FORMATS",
    "LOADERS",
    "CpuLoader",
    "Geometry",
    "ImageInfo",
    "InputError",
    "Limits",
    "LoadResult",
    "Loader",
    "PillowLoader",
    "PreprocessSpec",
    "create_loader",
    "geometry",
    "inspect",
]
