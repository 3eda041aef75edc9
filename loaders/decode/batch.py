"""Runs a function on each image of a batch: each gives pixels or an error, and none affects another."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from ..base import LoadResult
from ..errors import InputError
from ..headers.info import ImageInfo
from ..headers.limits import Limits
from ..headers.validate import validate
from ..preprocess.spec import PreprocessSpec
from ..sandbox.sandbox import Sandbox
from .pillow_decode import decoding_errors


@dataclass
class Stopwatch:
    """Adds up the CPU time of the calling thread by stage, seconds."""

    cpu_seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the CPU time of the block to `name`, whether or not it raises."""
        start = time.thread_time()
        try:
            yield
        finally:
            self.add(name, time.thread_time() - start)

    def add(self, name: str, seconds: float) -> None:
        """Add what was measured elsewhere."""
        self.cpu_seconds[name] = self.cpu_seconds.get(name, 0.0) + seconds


T = TypeVar("T")
R = TypeVar("R")

# bytes, header, where the normalised pixels go, clock
LoadOne = Callable[[bytes, ImageInfo, Tensor, Stopwatch], None]


def load_batch(
    load_one: LoadOne,
    items: Sequence[bytes],
    infos: Sequence[ImageInfo | None] | None,
    spec: PreprocessSpec,
    limits: Limits,
    sandbox: Sandbox,
    pool: Executor | None,
    workers: int = 1,
    pin_memory: bool = False,
    is_small: Callable[[bytes, ImageInfo], bool] = lambda item, info: False,
) -> LoadResult:
    """Run `load_one` for every item; each writes its own row.

    Args:
        sandbox: decodes the images that are `sandboxed`; `load_one` gets their crops, with `cropped` set.
        pool, workers: see `spread`.
        is_small: whether an image costs less than sharing it out: the calling thread loads it while the pool works.
        pin_memory: put the pixels in page-locked memory, from which a GPU copies asynchronously.

    Raises:
        ValueError: there are not as many infos as items.
        LoaderError: the sandbox cannot be started here, or a crop is not of this model.
    """
    infos = [None] * len(items) if infos is None else infos
    if len(infos) != len(items):
        raise ValueError(f"{len(infos)} infos for {len(items)} items: expected one each")
    pixels = torch.empty(len(items), 3, spec.size, spec.size, pin_memory=pin_memory)

    def run(index: int) -> tuple[InputError | None, Stopwatch]:
        watch = Stopwatch()
        try:
            with decoding_errors("image"):
                item, info = _cropped(items[index], infos[index], spec, limits, sandbox, watch)
                load_one(item, info, pixels[index], watch)
        except InputError as error:
            return error, watch
        return None, watch

    small = [info is not None and is_small(item, info) for item, info in zip(items, infos, strict=True)]
    return _gather(pixels, spread(run, range(len(items)), pool, workers, small))


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


def _cropped(
    item: bytes,
    info: ImageInfo | None,
    spec: PreprocessSpec,
    limits: Limits,
    sandbox: Sandbox,
    watch: Stopwatch,
) -> tuple[bytes, ImageInfo]:
    """Return the image with its header or, if only the sandbox may decode it, its crop."""
    if info is None:
        with watch.stage("inspect"):
            info = validate(item, limits)
    if not info.sandboxed:
        return item, info
    with watch.stage("decode"):
        return sandbox.crop(item, info, spec)


def _gather(pixels: Tensor, outcomes: list[tuple[InputError | None, Stopwatch]]) -> LoadResult:
    errors = {index: error for index, (error, _) in enumerate(outcomes) if error is not None}
    ok = [index for index in range(len(outcomes)) if index not in errors]
    seconds: dict[str, float] = {}
    for _, watch in outcomes:
        for stage, spent in watch.cpu_seconds.items():
            seconds[stage] = seconds.get(stage, 0.0) + spent
    return LoadResult(pixels[ok] if errors else pixels, ok, errors, seconds)
