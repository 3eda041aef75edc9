"""InferenceOptions: how a bundle is opened."""

from dataclasses import dataclass, field
from typing import Literal

from ..loaders.decode.dali_options import DaliOptions
from ..loaders.headers.limits import DEFAULT_LIMITS, ImageLimits
from .backend import BackendSetting


@dataclass(frozen=True, kw_only=True)
class InferenceOptions:
    """How a bundle is opened: the settings of the same names.

    Args:
        dtype: as `resolve_dtypes` takes it.
        max_batch_size: images of one forward at most; 0 = as many as keep the device busy.
        lanes, threads_per_image, micro_batch, decode_threads: 0 = chosen for the model and the machine.
        fusion, cuda_graphs: for a GPU.
        cpu_graphs: for a CPU.
        tuning: what is measured: what is not in the cache, nothing, or all.
        tuning_cache: folder of what was measured and exported; auto = in the user's cache.
        remembers: what is made and measured is kept for the next start, except in one shot.
        one_shot: for a few images of one process: nothing is measured, timed or recorded before the first one.
        limits: of one image.
    """

    device: str = "auto"
    dtype: str = "auto"
    backend: BackendSetting = "default"
    loader: str = "auto"
    decode_threads: int = 0
    lanes: int = 0
    threads_per_image: int = 0
    micro_batch: int = 0
    max_batch_size: int = 0
    fusion: Literal["auto", "off"] = "auto"
    tuning: Literal["auto", "off", "force"] = "auto"
    tuning_cache: str = "auto"
    cuda_graphs: bool = True
    cpu_graphs: bool = True
    remembers: bool = True
    one_shot: bool = False
    dali: DaliOptions = field(default_factory=DaliOptions)
    limits: ImageLimits = DEFAULT_LIMITS
