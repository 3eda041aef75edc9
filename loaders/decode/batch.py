"""Runs a function on each image of a batch: each gives pixels or an error, and none affects another."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...kernels.cpu.library import busy_thread
from ...kernels.cpu.uint8_images import Uint8Images
from ..base import SOUND, LoadResult
from ..errors import InputError, LoaderError, without_frames
from ..headers.info import ImageInfo
from ..headers.limits import DEFAULT_LIMITS, ImageLimits
from ..headers.validate import validate
from ..preprocess.normalise import Normaliser
from ..preprocess.spec import PreprocessSpec
from ..sandbox.sandbox import Sandbox
from ..thread_clock import thread_cpu_seconds
from .npy import write_input
from .pillow_decode import decoding_errors


@dataclass
class Stopwatch:
    """Adds up the CPU time of the calling thread by stage, seconds."""

    cpu_seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the CPU time of the block to `name`, whether or not it raises."""
        start = thread_cpu_seconds()
        try:
            yield
        finally:
            self.add(name, thread_cpu_seconds() - start)

    def add(self, name: str, seconds: float) -> None:
        """Add what was measured elsewhere."""
        self.cpu_seconds[name] = self.cpu_seconds.get(name, 0.0) + seconds


T = TypeVar("T")
R = TypeVar("R")


class BatchLoader(ABC):
    """Loads each image of a batch alone, so that none affects another: what the loaders `cpu` and `pillow` share.

    Args:
        pin_memory: put the pixels in page-locked memory, from which a GPU copies asynchronously.
        sandbox: decodes the images that are `sandboxed`. With None the loader makes one, and closes it; one that is
            given to it goes on.
    """

    name: str
    description: str
    health = SOUND
    pool: Executor | None = None
    num_threads = 1

    def __init__(
        self,
        spec: PreprocessSpec,
        limits: ImageLimits = DEFAULT_LIMITS,
        *,
        pin_memory: bool = False,
        sandbox: Sandbox | None = None,
    ) -> None:
        self.spec, self.limits = spec, limits
        self.sandbox, self._owns_sandbox = sandbox or Sandbox(limits), sandbox is None
        self._pin_memory, self._normaliser = pin_memory, Normaliser(spec)
        self.gives_uint8 = False
        """Whether a batch may be `Uint8Images`, as our CPU kernels take it."""

    def load(
        self,
        items: Sequence[bytes],
        infos: Sequence[ImageInfo | None] | None = None,
        sources: Sequence[str | None] | None = None,
    ) -> LoadResult:
        """See `Loader.load`. May be called from several threads, which share the pool.

        Raises:
            ValueError: there are not as many infos as items.
            LoaderError: the sandbox cannot be started here, or a crop is not of this model.
        """
        infos = [None] * len(items) if infos is None else infos
        if len(infos) != len(items):
            raise ValueError(f"{len(infos)} infos for {len(items)} items: expected one each")
        raw = self.gives_uint8 and all(info is not None and not _is_input(info) for info in infos)
        pixels = np.empty((len(items), *[self.spec.size] * 2, 4), np.uint8) if raw else self._blank(len(items))

        def run(index: int) -> tuple[InputError | None, Stopwatch]:
            watch = Stopwatch()
            try:
                with busy_thread(), decoding_errors("image"):
                    item, info = self._cropped(items[index], infos[index], watch)
                    self.load_one(item, info, pixels[index], watch)
            except InputError as error:
                return without_frames(error), watch
            return None, watch

        small = [info is not None and self.is_small(item, info) for item, info in zip(items, infos, strict=True)]
        outcomes = spread(run, range(len(items)), self.pool, self.num_threads, small)
        return _gather(pixels, outcomes, self._normaliser.normal if raw else None)

    def warm_up(self, batch_size: int) -> None:
        """Do nothing: a first call is as fast as any."""
        return

    def close(self) -> None:
        """Close the sandbox if this loader made it."""
        if self._owns_sandbox:
            self.sandbox.close()

    def load_one(self, data: bytes, info: ImageInfo, out: NDArray[Any], watch: Stopwatch) -> None:
        """Load one validated image, or its crop, into its row of the batch; raises InputError."""
        if _is_input(info):
            with watch.stage("decode"):
                write_input(data, info, out)
            return
        if info.cropped:
            crop = _cut_elsewhere(data, self.spec.size)
        else:
            crop = self.crop(data, info, info.orientation if self.spec.orientation == "apply" else 1, watch)
        with watch.stage("normalise"):
            if out.dtype == np.uint8:
                _copy_levels(crop, out)
            else:
                self._normaliser.write(crop, out)

    @abstractmethod
    def crop(self, data: bytes, info: ImageInfo, orientation: int, watch: Stopwatch) -> NDArray[np.uint8]:
        """Decode a validated picture and cut the model's crop, upright by `orientation`; see `upright_crop`."""

    def _blank(self, count: int) -> NDArray[np.float32]:
        shape = (count, 3, self.spec.size, self.spec.size)
        if not self._pin_memory:
            return np.empty(shape, np.float32)
        import torch

        pinned: NDArray[np.float32] = torch.empty(shape, pin_memory=True).numpy()
        return pinned

    def is_small(self, data: bytes, info: ImageInfo) -> bool:
        """Tell whether an image costs less than handing it to the pool: then the calling thread loads it."""
        return False

    def _cropped(self, item: bytes, info: ImageInfo | None, watch: Stopwatch) -> tuple[bytes, ImageInfo]:
        """Return the image with its header or, if only the sandbox may decode it, its crop."""
        if info is None:
            with watch.stage("inspect"):
                info = validate(item, self.limits)
        if not info.sandboxed:
            return item, info
        with watch.stage("decode"):
            return self.sandbox.crop(item, info, self.spec)


def _is_input(info: ImageInfo) -> bool:
    """Whether an item is a model's input and no picture."""
    return info.array is not None and info.array.is_input


def _cut_elsewhere(levels: bytes, size: int) -> NDArray[np.uint8]:
    """A crop that a `Sandbox` made, RGB (size, size, 3); where it is of another size, the image is not at fault."""
    if len(levels) != 3 * size**2:
        raise LoaderError(f"the crop has {len(levels)} bytes: the model takes {size}x{size} px of 3 bytes")
    return np.frombuffer(levels, np.uint8).reshape(size, size, 3)


def _copy_levels(crop: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Copy levels (size, size, 3 or 4) of any strides to (size, size, 4): whole pixels, or colour by colour, since a
    copy of three bytes at a time takes five times as long."""
    if crop.shape[2] == 4:
        out.view(np.uint32)[...] = crop.view(np.uint32)
    else:
        for colour in range(3):
            out[..., colour] = crop[..., colour]


def spread(
    run: Callable[[T], R], items: Sequence[T], pool: Executor | None, workers: int, here: Sequence[bool] = ()
) -> list[R]:
    """Call `run` for every item and return the results in order; what `run` raises is raised here too.

    Args:
        pool: where it runs; the calling thread when None.
        workers: threads of `pool`. Each takes item after item, since handing over a single item costs 0.06 ms.
        here: for each item, whether the calling thread runs it even if there is a pool; empty means none.
    """
    results: dict[int, R] = {}

    def work(turns: Iterator[int]) -> None:
        for index in turns:
            results[index] = run(items[index])

    mine = [index for index, stays in enumerate(here) if stays]
    others = [index for index in range(len(items)) if not (here and here[index])]
    turns = iter(others)  # shared: a free thread takes the next
    busy = [] if pool is None else [pool.submit(work, turns) for _ in range(min(workers, len(others)))]
    work(iter(mine))
    if pool is None:
        work(turns)
    for worker in busy:
        worker.result()
    return [results[index] for index in range(len(items))]


def _gather(
    pixels: NDArray[Any], outcomes: list[tuple[InputError | None, Stopwatch]], normal: NDArray[np.float32] | None
) -> LoadResult:
    errors = {index: error for index, (error, _) in enumerate(outcomes) if error is not None}
    ok = [index for index in range(len(outcomes)) if index not in errors]
    seconds: dict[str, float] = {}
    for _, watch in outcomes:
        for stage, spent in watch.cpu_seconds.items():
            seconds[stage] = seconds.get(stage, 0.0) + spent
    made = pixels[ok] if errors else pixels
    return LoadResult(made if normal is None else Uint8Images(made, normal), ok, errors, seconds)
