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
        lanes, threads_per_lane, micro_batch, decode_threads: 0 = chosen for the model and the machine.
        fusion, tuning, tuning_cache, cuda_graphs: for a GPU.
        cpu_graphs: for a CPU.
        limits: of one image.
    """

    device: str = "auto"
    dtype: str = "auto"
    backend: BackendSetting = "default"
    loader: str = "auto"
    decode_threads: int = 0
    lanes: int = 0
    threads_per_lane: int = 0
    micro_batch: int = 0
    max_batch_size: int = 0
    fusion: Literal["auto", "off"] = "auto"
    tuning: Literal["auto", "off", "force"] = "auto"
    tuning_cache: str = "auto"
    cuda_graphs: bool = True
    cpu_graphs: bool = True
    dali: DaliOptions = field(default_factory=DaliOptions)
    limits: ImageLimits = DEFAULT_LIMITS
