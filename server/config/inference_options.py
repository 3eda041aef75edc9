"""What settings say of how a bundle is opened for inference."""

from ...inference.open import InferenceOptions
from ...loaders.select import DaliOptions
from .settings import Settings, image_limits


def inference_options(settings: Settings) -> InferenceOptions:
    """The options of `inference.open.open_model` that these settings mean."""
    return InferenceOptions(
        device=settings.device,
        dtype=settings.dtype,
        backend=settings.engine,
        loader=settings.loader,
        decode_threads=settings.decode_threads,
        lanes=settings.lanes,
        threads_per_lane=settings.threads_per_lane,
        micro_batch=settings.micro_batch,
        max_batch_size=settings.max_batch_size,
        fusion=settings.fusion,
        tuning=settings.tuning,
        tuning_cache=settings.tuning_cache,
        cuda_graphs=settings.cuda_graphs,
        cpu_graphs=settings.cpu_graphs,
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
