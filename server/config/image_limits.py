"""What settings say of images."""

from dataclasses import replace

from ...loaders.headers.info import FORMATS, OPT_IN_FORMATS
from ...loaders.headers.limits import DEFAULT_LIMITS, Limits
from .settings import Settings


def image_limits(settings: Settings) -> Limits:
    """What one image may be."""
    named = settings.formats.upper().split(",")
    formats = tuple(format for format in FORMATS + OPT_IN_FORMATS if format in named)
    return replace(DEFAULT_LIMITS, max_bytes=settings.max_image_bytes, formats=formats)
