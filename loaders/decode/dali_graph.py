"""One decode-resize-normalise graph of NVIDIA DALI, on a GPU or on the CPU; the only module that imports DALI.

The caller gives the geometry in source pixels, since DALI's own resize-shorter-and-crop rounds lengths and offsets
differently. The resize runs in two passes with 8-bit levels between them, as Pillow's does.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from ...kernels.installation import install_command
from ..errors import LoaderError
from ..preprocess.spec import Geometry, PreprocessSpec
from .dali_options import DEFAULT_DALI as DEFAULT_DALI
from .dali_options import DaliOptions as DaliOptions

LARGE_PIXELS = 12_000_000
"""Pixels of a phone's photograph. Buffers have this size from the start, so that none is reallocated in a request."""


class DaliError(RuntimeError):
    """A batch failed. The graph can be used again: it was rebuilt, or will be for the next batch."""


class Region(NamedTuple):
    """Where a crop lies in its source: size as stored and box, px, and whether the columns are resized first."""

    width: int
    height: int
    left: float
    top: float
    right: float
    bottom: float
    columns_first: bool

    @classmethod
    def of(cls, target: Geometry, width: int, height: int) -> "Region":
        """Make the region of a crop that lies inside the resized image; `target` is in stored coordinates."""
        x, y = width / target.resize_width, height / target.resize_height
        right, bottom = target.left + target.size, target.top + target.size
        return cls(width, height, target.left * x, target.top * y, right * x, bottom * y, target.columns_first)


class DaliGraph:
    """A built DALI pipeline; one thread at a time may use it.

    Args:
        num_threads: threads of DALI's own pool.
        device: "cpu", or "gpu" for `device_id`.

    Raises:
        LoaderError: DALI is not installed, or cannot build the graph here, such as for a GPU that is not there.
    """

    def __init__(
        self,
        spec: PreprocessSpec,
        options: DaliOptions = DEFAULT_DALI,
        num_threads: int = 1,
        *,
        device: Literal["cpu", "gpu"] = "cpu",
        device_id: int = 0,
    ) -> None:
        self.spec, self.options, self.device = spec, options, device
        self.dtype: torch.dtype = getattr(torch, options.dtype)
        self.rebuilds, self.failed_builds = 0, 0
        self.error: str | None = None
        self._threads, self._device_id = num_threads, device_id if device == "gpu" else None
        self._dali = import_dali()
        self.pipeline: Any = self.build()
        # A GPU may still read these bodies: its stream runs behind the caller, and DALI was told not to copy them.
        self._read: deque[list[NDArray[np.uint8]]] = deque(maxlen=2)

    def run(self, bodies: Sequence[bytes], regions: Sequence[Region]) -> Tensor:
        """Decode, resize, crop and normalise JPEGs.

        Returns:
            (n, 3, size, size) of `dtype`, as stored (not turned upright), on the graph's device. On a GPU, work that is
            launched on the calling thread's current stream may use them.

        Raises:
            DaliError: some body could not be decoded, or the graph could not be rebuilt. DALI does not say which body,
                and the pipeline is lost.
        """
        if not bodies:
            return torch.empty(0, 3, self.spec.size, self.spec.size, dtype=self.dtype, device=self.torch_device)
        if self.pipeline is None:
            self._rebuild()
        encoded = [np.frombuffer(body, np.uint8) for body in bodies]
        boxes = [self._boxes(region) for region in regions]
        stream = None if self._device_id is None else torch.cuda.current_stream(self._device_id)
        self._read.append(encoded)
        try:
            (pixels,) = self.pipeline.run(stream, encoded=encoded, boxes=boxes)
            return from_dlpack(pixels.as_tensor()).to(self.dtype)  # float32 and float16 share DALI's memory
        except Exception as error:  # DALI raises RuntimeError; whatever it is, only this batch is lost
            self.pipeline = None
            self.rebuilds += 1
            self._rebuild()
            raise DaliError(_reason(error)) from None

    def close(self) -> None:
        """End the threads and free the memory; the graph cannot be used afterwards."""
        self.pipeline = None
        self._read.clear()
        self._dali.backend.ReleaseUnusedMemory()  # of DALI's pools, which all graphs of the process share

    @property
    def torch_device(self) -> torch.device:
        """Where the pixels are."""
        return torch.device("cpu") if self._device_id is None else torch.device("cuda", self._device_id)

    def _rebuild(self) -> None:
        """Build a new pipeline after one was lost.

        Raises:
            DaliError: it cannot be built now; the next run tries again.
        """
        try:
            self.pipeline = self.build()
        except LoaderError as error:
            self.failed_builds += 1
            self.error = str(error)
            raise DaliError(self.error) from None
        self.failed_builds, self.error = 0, None

    def build(self) -> Any:
        """Return a new pipeline, built; raise LoaderError if it cannot be built here."""
        try:
            pipeline = self.define()
            pipeline.build()
        except RuntimeError as error:
            raise LoaderError(f"DALI cannot be built for the {self.device}: {_reason(error)}") from None
        return pipeline

    def define(self) -> Any:
        """Define the graph without building it; this works, up to serialising it, for a GPU that is not there."""
        fn, types = self._dali.fn, self._dali.types
        pipeline = self._dali.Pipeline(
            batch_size=self.options.max_batch,
            num_threads=self._threads,
            device_id=self._device_id,
            prefetch_queue_depth=1,
        )
        cubic = self.spec.interpolation == "bicubic"
        how = {"interp_type": types.INTERP_CUBIC if cubic else types.INTERP_LINEAR, "antialias": True}
        with pipeline:
            encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1, batch=True, no_copy=True)
            boxes = fn.external_source(name="boxes", dtype=types.FLOAT, ndim=1, batch=True)
            levels = self._decoded(encoded)
            for first in range(0, 6 * (2 if self.options.resample == "exact" else 1), 6):
                size, start, end = (boxes[first + at : first + at + 2] for at in (0, 2, 4))
                levels = fn.resize(levels, size=size, roi_start=start, roi_end=end, **how)
            pipeline.set_outputs(
                fn.crop_mirror_normalize(
                    levels,
                    mean=[255 * value for value in self.spec.mean],
                    std=[255 * value for value in self.spec.std],
                    dtype=types.FLOAT16 if self.dtype == torch.float16 else types.FLOAT,
                    output_layout="CHW",
                )
            )
        return pipeline

    def _decoded(self, encoded: Any) -> Any:
        """RGB levels 0..255 of JPEGs, on the graph's device."""
        on_gpu = {
            "hw_decoder_load": self.options.hw_decoder_load,
            "jpeg_fancy_upsampling": True,  # off by default on a GPU; every CPU decoder does it
            "device_memory_padding": 3 * LARGE_PIXELS,
            "host_memory_padding": LARGE_PIXELS,
            "preallocate_width_hint": 4000,
            "preallocate_height_hint": LARGE_PIXELS // 4000,
        }
        return self._dali.fn.decoders.image(
            encoded,
            device="cpu" if self.device == "cpu" else "mixed",
            output_type=self._dali.types.RGB,
            adjust_orientation=False,  # boxes are in stored coordinates
            **({} if self.device == "cpu" else on_gpu),
        )

    def _boxes(self, region: Region) -> NDArray[np.float32]:
        """Return size, start and end (y, x) of the region for each resize of the graph."""
        size, full = float(self.spec.size), (float(region.height), float(region.width))
        start, end = (region.top, region.left), (region.bottom, region.right)
        if self.options.resample == "fused":
            return np.array([size, size, *start, *end], np.float32)
        if region.columns_first:
            first = (size, full[1], start[0], 0.0, end[0], full[1])
            second = (size, size, 0.0, start[1], size, end[1])
        else:
            first = (full[0], size, 0.0, start[1], full[0], end[1])
            second = (size, size, start[0], 0.0, end[0], size)
        return np.array([*first, *second], np.float32)


def import_dali() -> Any:
    """Import `nvidia.dali`; raise a LoaderError that names the extra if it is not installed."""
    try:
        import nvidia.dali
    except ImportError as error:
        raise LoaderError(f"loader dali needs nvidia-dali: {install_command('dali')} ({error})") from None
    return nvidia.dali


def gpus() -> int:
    """Return how many GPUs DALI sees; raise LoaderError if it is not installed."""
    return int(import_dali().backend.GetCUDADeviceCount())


def _reason(error: Exception) -> str:
    """Return the line of DALI's message that says what was wrong.

    Only DALI's own errors are quoted: others may show their arguments, which are image bytes.
    """
    if not isinstance(error, RuntimeError):
        return f"unexpected {type(error).__name__}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("Critical", "Current pipeline", "Stacktrace", "["))]
    return (told or lines or ["no message"])[-1][:200]
