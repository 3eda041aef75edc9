"""What settings say of images."""

from dataclasses import replace

from ..loaders.info import FORMATS, OPT_IN_FORMATS
from ..loaders.limits import DEFAULT_LIMITS, Limits
from .settings import Settings


def image_limits(settings: Settings) -> Limits:
    """What one image may be."""
    formats = FORMATS + OPT_IN_FORMATS if settings.jpeg2000 else FORMATS
    return replace(DEFAULT_LIMITS, max_bytes=settings.max_image_bytes, formats=formats)
