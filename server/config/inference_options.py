"""What settings say of how a bundle is opened for inference."""

from ...inference.options import InferenceOptions
from ...loaders.decode.dali_options import DaliOptions
from .settings import Settings, image_limits

# Settings and options of one name.
_SAME_NAMES = (
    *(
        "device",
        "dtype",
        "backend",
        "loader",
        "decode_threads",
        "lanes",
        "threads_per_lane",
        "micro_batch",
        "max_batch_size",
    ),
    *("fusion", "tuning", "tuning_cache", "cuda_graphs", "cpu_graphs"),
)


def inference_options(settings: Settings) -> InferenceOptions:
    """The options of `inference.open.open_model` that these settings mean."""
    return InferenceOptions(
        **{name: getattr(settings, name) for name in _SAME_NAMES},
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
