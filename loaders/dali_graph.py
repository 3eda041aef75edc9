"""The door to NVIDIA DALI: one decode-resize-normalise graph, on a GPU or on the CPU, fed a batch at a time.

Geometry comes from the caller, in source pixels, and the resize runs in two passes with 8-bit levels between, as
Pillow's does. DALI's own resize-shorter-and-crop rounds lengths and offsets differently.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from .errors import LoaderError
from .spec import Geometry, PreprocessSpec

Resample = Literal["exact", "fused"]
RESAMPLES = ("exact", "fused")


class DaliError(RuntimeError):
    """A batch failed; the graph was built anew and may be used again."""


class Region(NamedTuple):
    """Where a crop lies in its source: stored size and box, px; whether the columns are resized first."""

    width: int
    height: int
    left: float
    top: float
    right: float
    bottom: float
    columns_first: bool

    @classmethod
    def of(cls, target: Geometry, width: int, height: int, columns_first: bool) -> "Region":
        """Of a crop that lies inside the resized image; `target` is in stored coordinates."""
        x, y = width / target.resize_width, height / target.resize_height
        right, bottom = target.left + target.size, target.top + target.size
        return cls(width, height, target.left * x, target.top * y, right * x, bottom * y, columns_first)


class DaliGraph:
    """A built DALI pipeline of its own; used by one thread at a time.

    Args:
        batch_size: bodies of a run at most.
        num_threads: of DALI's own pool.
        device: "cpu", or "gpu" for `device_id`.
        hw_decoder_load: share of a GPU's JPEGs for its hardware engine, 0..1. 0 by default: on Hopper that engine
            has been seen not to keep stream order (pytorch/vision#9606).
        resample: "exact" in two passes, "fused" in one, a little off (`milkweed bench decode` measures both).

    Raises:
        LoaderError: DALI is not installed, or cannot build the graph here, such as for a GPU that is not there.
    """

    def __init__(
        self,
        spec: PreprocessSpec,
        *,
        batch_size: int,
        num_threads: int = 1,
        device: Literal["cpu", "gpu"] = "cpu",
        device_id: int = 0,
        hw_decoder_load: float = 0.0,
        resample: Resample = "exact",
    ) -> None:
        if resample not in RESAMPLES:
            raise ValueError(f"resample is {resample!r}: expected {' or '.join(RESAMPLES)}")
        if not 0 <= hw_decoder_load <= 1:
            raise ValueError(f"hw_decoder_load is {hw_decoder_load!r}: expected a number from 0 to 1")
        self.spec, self.batch_size, self.device, self.resample = spec, batch_size, device, resample
        self.hw_decoder_load, self.rebuilds = hw_decoder_load, 0
        self._threads, self._device_id = num_threads, device_id if device == "gpu" else None
        self._dali = _dali()
        self._pipeline = self._build()

    def run(self, bodies: Sequence[bytes], regions: Sequence[Region]) -> Tensor:
        """Decode, resize, crop and normalise JPEGs.

        Returns:
            float32 (n, 3, size, size), as stored (not turned upright), on the graph's device.

        Raises:
            DaliError: some body could not be decoded. DALI does not say which, and a pipeline is lost by it: it
                has been rebuilt.
        """
        if not bodies:
            return torch.empty(0, 3, self.spec.size, self.spec.size)
        boxes = np.stack([self._boxes(region) for region in regions])
        try:
            (pixels,) = self._pipeline.run(
                encoded=[np.frombuffer(body, np.uint8) for body in bodies], boxes=list(boxes)
            )
        except RuntimeError as error:
            self._pipeline = self._build()
            self.rebuilds += 1
            raise DaliError(_last_line(error)) from None
        return from_dlpack(pixels.as_tensor())

    @property
    def torch_device(self) -> torch.device:
        """Where the pixels are."""
        return torch.device("cpu") if self._device_id is None else torch.device("cuda", self._device_id)

    def _build(self) -> Any:
        try:
            pipeline = self._defined()
            pipeline.build()
        except RuntimeError as error:
            raise LoaderError(f"DALI cannot be built for the {self.device}: {_last_line(error)}") from None
        return pipeline

    def _defined(self) -> Any:
        """The graph, not built: it can be made and serialised for a GPU that is not there."""
        fn, types = self._dali.fn, self._dali.types
        pipeline = self._dali.Pipeline(
            batch_size=self.batch_size,
            num_threads=self._threads,
            device_id=self._device_id,
            prefetch_queue_depth=1,
        )
        cubic = self.spec.interpolation == "bicubic"
        how = {"interp_type": types.INTERP_CUBIC if cubic else types.INTERP_LINEAR, "antialias": True}
        on_gpu = (
            {}
            if self.device == "cpu"
            else {
                "hw_decoder_load": self.hw_decoder_load,
                "jpeg_fancy_upsampling": True,  # off by default there, and what every CPU decoder does
            }
        )
        with pipeline:
            encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1, batch=True, no_copy=True)
            boxes = fn.external_source(name="boxes", dtype=types.FLOAT, ndim=1, batch=True)
            levels = fn.decoders.image(
                encoded,
                device="cpu" if self.device == "cpu" else "mixed",
                output_type=types.RGB,
                adjust_orientation=False,  # boxes are of the stored picture
                **on_gpu,
            )
            for first in range(0, 6 * (2 if self.resample == "exact" else 1), 6):
                size, start, end = (boxes[first + at : first + at + 2] for at in (0, 2, 4))
                levels = fn.resize(levels, size=size, roi_start=start, roi_end=end, **how)
            pipeline.set_outputs(
                fn.crop_mirror_normalize(
                    levels,
                    mean=[255 * value for value in self.spec.mean],
                    std=[255 * value for value in self.spec.std],
                    dtype=types.FLOAT,
                    output_layout="CHW",
                )
            )
        return pipeline

    def _boxes(self, region: Region) -> NDArray[np.float32]:
        """Size, start and end (y, x) of the region for each resize of the graph."""
        size, full = float(self.spec.size), (float(region.height), float(region.width))
        start, end = (region.top, region.left), (region.bottom, region.right)
        if self.resample == "fused":
            return np.array([size, size, *start, *end], np.float32)
        if region.columns_first:
            first = (size, full[1], start[0], 0.0, end[0], full[1])
            second = (size, size, 0.0, start[1], size, end[1])
        else:
            first = (full[0], size, 0.0, start[1], full[0], end[1])
            second = (size, size, start[0], 0.0, end[0], size)
        return np.array([*first, *second], np.float32)


def _dali() -> Any:
    try:
        import nvidia.dali
    except ImportError as error:
        raise LoaderError(f"loader dali needs nvidia-dali: pip install 'milkweed[dali]' ({error})") from None
    return nvidia.dali


def _last_line(error: RuntimeError) -> str:
    """The line of DALI's message that says what was wrong; it never holds image bytes."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("Critical", "Current pipeline", "Stacktrace", "["))]
    return (told or lines or ["no message"])[-1][:200]
