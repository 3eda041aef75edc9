"""Encoded images to model input: header validation, decoders, preprocessing and labelled folders.

A name's module is imported when the name is first used, so that reading headers needs neither torch nor a decoder.
"""

from typing import TYPE_CHECKING

from ..kernels.lazy_names import lazy_names

if TYPE_CHECKING:
    from .base import Loader as Loader
    from .base import LoadResult as LoadResult
    from .decode.cpu import CpuLoader as CpuLoader
    from .decode.pillow import PillowLoader as PillowLoader
    from .errors import CODES as CODES
    from .errors import InputError as InputError
    from .headers.info import FORMATS as FORMATS
    from .headers.info import ImageInfo as ImageInfo
    from .headers.limits import DEFAULT_LIMITS as DEFAULT_LIMITS
    from .headers.limits import ImageLimits as ImageLimits
    from .headers.validate import validate as validate
    from .preprocess.spec import Geometry as Geometry
    from .preprocess.spec import PreprocessSpec as PreprocessSpec
    from .preprocess.spec import geometry as geometry
    from .select import LOADERS as LOADERS
    from .select import create_loader as create_loader

_HOMES = {
    "base": ("LoadResult", "Loader"),
    "decode.cpu": ("CpuLoader",),
    "errors": ("CODES", "InputError"),
    "headers.info": ("FORMATS", "ImageInfo"),
    "headers.limits": ("DEFAULT_LIMITS", "ImageLimits"),
    "headers.validate": ("validate",),
    "decode.pillow": ("PillowLoader",),
    "select": ("LOADERS", "create_loader"),
    "preprocess.spec": ("Geometry", "PreprocessSpec", "geometry"),
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _HOMES)
