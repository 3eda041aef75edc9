"""DaliOptions says how DALI decodes, and what; a server without DALI reads it too."""

from dataclasses import dataclass
from typing import Literal

Resample = Literal["exact", "fused"]
RESAMPLES = ("exact", "fused")
DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class DaliOptions:
    """How DALI decodes, and what it decodes.

    Args:
        hw_decoder_load: share of a GPU's JPEGs for its hardware engine, 0..1. 0 by default: on Hopper that engine has
            been seen not to keep stream order (pytorch/vision#9606), and pixels depend on the rest of the batch there.
        resample: "exact" in two passes, "fused" in one, a little off (`milkweed bench decode` measures both).
        min_pixels: the fast loader gets smaller images, unless a batch has at least `min_batch` images for DALI.
        strict: read each JPEG's coded data on the CPU first and refuse damaged ones, as the other loaders do. It costs
            half of a decode; without it, DALI answers some damaged pictures with what it made of them.
        max_batch, max_batch_pixels: limits of one run; so many source pixels are 384 MB of levels.
        dtype: number type of the pixels: float32, float16 (DALI writes both) or bfloat16 (cast on the graph's device).
    """

    hw_decoder_load: float = 0.0
    resample: Resample = "exact"
    min_pixels: int = 0
    min_batch: int = 1
    strict: bool = True
    max_batch: int = 64
    max_batch_pixels: int = 128_000_000
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.resample not in RESAMPLES:
            raise ValueError(f"resample is {self.resample!r}: expected {' or '.join(RESAMPLES)}")
        if not 0 <= self.hw_decoder_load <= 1:
            raise ValueError(f"hw_decoder_load is {self.hw_decoder_load!r}: expected a number from 0 to 1")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype}: expected {', '.join(DTYPES)}")


DEFAULT_DALI = DaliOptions()
