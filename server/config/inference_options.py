"""What settings say of how a bundle is opened for inference."""

from dataclasses import fields

from ...inference.options import InferenceOptions
from ...loaders.decode.dali_options import DaliOptions
from .settings import Settings, image_limits


def inference_options(settings: Settings) -> InferenceOptions:
    """The options of `inference.open.open_model` that these settings mean."""
    same_names = {option.name for option in fields(InferenceOptions)} - {"dali", "limits", "remembers", "one_shot"}
    return InferenceOptions(
        **{name: getattr(settings, name) for name in same_names},
        dali=DaliOptions(
            hw_decoder_load=settings.hw_decoder_load,
            resample=settings.resample,
            min_pixels=settings.dali_min_pixels,
            min_batch=settings.dali_min_batch,
            strict=settings.strict_jpeg,
            max_batch_pixels=settings.max_batch_pixels,
        ),
        limits=image_limits(settings),
    )
