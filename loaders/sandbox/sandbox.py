"""Decodes images in child processes, and replaces a child that dies, is late or answers wrongly."""

import math
import os
import re
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import DecoderLostError, InputError, LoaderError, undecodable, unsupported
from ..headers.info import ImageInfo
from ..headers.limits import DEFAULT_LIMITS, ImageLimits
from ..headers.validate import check_size
from ..preprocess.crop import Crop
from ..preprocess.orientation import pillow_crop
from ..preprocess.spec import PreprocessSpec
from .child import ASK, CROP, FOUND, MADE, NOTHING, WANT, WHOLE, memory_for
from .process import Child, DeathReason, DiedError

MEMORY_BYTES = 256 << 20
"""What a child may map beyond its start, and what the pictures of all children may take together."""
CPU_SECONDS = 2.0
ANSWER_SECONDS = 10.0

SandboxOutcome = Literal["ok", "refused", "died", "unavailable"]
"""What becomes of an image: decoded, refused, the end of its child, or not decoded through no fault of its own."""

# A decoder neither sleeps nor waits: a child that is late with CPU time left was stopped, or got no core.
_OUTSIDE: frozenset[DeathReason] = frozenset(("late", "killed"))

_MODES = frozenset(("1", "L", "P", "RGB", "RGBA", "RGBX", "LA", "PA", "CMYK", "YCbCr", "I;16", "I;16B"))


class Sandbox:
    """Decodes images in child processes. Several threads may use it at once.

    There is one child for each thread that asks; it is started when it is needed and then kept. No child is trusted: a
    child that ends, is late, or answers something else is killed, and the next image gets another child. Its image is
    "undecodable" where it may be the cause; where it is not, as the child was killed from outside or got no CPU, the
    image is tried once more in a new child. A process that is forked from this one starts its own children.

    Args:
        limits: limits that each picture must keep, once a child has read its header.
        memory_bytes: memory that a child may map beyond what its start took; large pictures take turns, so that all
            children together decode no more than that.
        cpu_seconds: CPU time that a child may use for one image.
        answer_seconds: wall time that a child may take for one image, or to start.
    """

    def __init__(
        self,
        limits: ImageLimits = DEFAULT_LIMITS,
        memory_bytes: int = MEMORY_BYTES,
        cpu_seconds: float = CPU_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self.limits, self.memory_bytes = limits, memory_bytes
        self.cpu_seconds, self.answer_seconds = cpu_seconds, answer_seconds
        self.images: Counter[SandboxOutcome] = Counter()
        self.deaths: Counter[DeathReason] = Counter()
        self.idle: deque[Child] = deque()  # children that wait for an image
        self._begin_here()
        self._end = weakref.finalize(self, _end_all, self.idle)

    def __reduce__(self) -> tuple[object, ...]:
        return Sandbox, (self.limits, self.memory_bytes, self.cpu_seconds, self.answer_seconds)

    def crop(self, data: bytes, info: ImageInfo, spec: PreprocessSpec) -> tuple[bytes, ImageInfo]:
        """Decode one image, and return what loaders take in place of it and its header: the model's crop, as bytes."""
        levels, header = self.read(data, info, spec)
        return levels.tobytes(), replace(header, cropped=True)

    def read(
        self, data: bytes, info: ImageInfo, spec: PreprocessSpec, whole: bool = False
    ) -> tuple[NDArray[np.uint8], ImageInfo]:
        """Decode one image.

        Args:
            data: the encoded image.
            info: what `validate` returned for it.
            whole: return the whole picture instead of the model's crop.

        Returns:
            RGB levels and the complete header. The levels of the crop, (size, size, 3), have the same bits as those
            that `PillowLoader` makes; those of the whole picture, (height, width, 3), are upright if `spec` says so.

        Raises:
            InputError: the image is beyond the limits, cannot be decoded, or takes more than a child may use.
            DecoderLostError: two children were killed from outside, or got no CPU.
            LoaderError: a child cannot be started here.
        """
        with suppress(DiedError, LoaderError):
            return self._try(data, info, spec, whole)
        _end_all(self.idle)  # whoever stopped one child may have stopped them all
        try:
            return self._try(data, info, spec, whole)
        except LoaderError:
            self._count("unavailable")
            raise
        except DiedError as death:
            self._count("unavailable")
            raise DecoderLostError("undecodable", self._words(info, death.reason)) from None

    def _try(
        self, data: bytes, info: ImageInfo, spec: PreprocessSpec, whole: bool
    ) -> tuple[NDArray[np.uint8], ImageInfo]:
        """Decode one image in one child. Raises DiedError where the image is not to blame for the child's death."""
        child, in_step = self._child(), False
        try:
            answer = self._ask(child, data, info, spec, whole)
            in_step = True
            self._count("ok")
            return answer
        except InputError:
            in_step = True
            self._count("refused")
            raise
        except DiedError as death:
            with self._lock:
                self.deaths[death.reason] += 1
            if death.reason in _OUTSIDE:
                raise
            self._count("died")
            raise undecodable(self._words(info, death.reason)) from None
        finally:
            if in_step and self._end.alive:
                self.idle.append(child)
            else:
                child.end()

    def close(self) -> None:
        """End the children that wait; a child that is decoding ends after its image."""
        self._end()

    def _begin_here(self) -> None:
        self._owner, self._lock, self._turn = os.getpid(), threading.Lock(), threading.Lock()
        self._megabytes = threading.Semaphore(self.memory_bytes >> 20)

    @contextmanager
    def _memory(self, megabytes: int) -> Iterator[None]:
        """Wait until the pictures under way leave so much of `memory_bytes`; each of them has a deadline."""
        with self._turn:  # small pictures do not pass a large one
            for _ in range(megabytes):
                self._megabytes.acquire()
        try:
            yield
        finally:
            self._megabytes.release(megabytes)

    def _child(self) -> Child:
        """Take a child that waits, or start one."""
        if self._owner != os.getpid():  # in a fork: the waiting children belong to the process that started them
            _end_all(self.idle)
            self._begin_here()
        while True:
            try:
                child = self.idle.pop()
            except IndexError:
                return Child(self.memory_bytes, self.cpu_seconds, self.answer_seconds)
            if child.is_waiting():
                return child
            child.end()

    def _ask(
        self, child: Child, data: bytes, info: ImageInfo, spec: PreprocessSpec, whole: bool
    ) -> tuple[NDArray[np.uint8], ImageInfo]:
        """Ask one child for one image. After an InputError the child can be asked for the next one."""
        child.deadline = time.monotonic() + self.answer_seconds
        child.send(ASK.pack(info.format.encode(), len(data)), data)
        header = _header(child, info)
        try:
            check_size(header, self.limits)
            _check_mode(header)
        except InputError:
            child.send(WANT.pack(NOTHING, *Crop(1)))
            raise
        turned = spec.orientation == "apply"
        orientation, (width, height) = header.orientation if turned else 1, header.upright_size(turned)
        crop = Crop(orientation) if whole else pillow_crop(spec, width, height, orientation)
        shape = (height, width, 3) if whole else (spec.size, spec.size, 3)
        most = min(self.memory_bytes, memory_for(header.format, len(data), header.pixels))
        with self._memory(most >> 20):
            child.deadline = time.monotonic() + self.answer_seconds
            child.send(WANT.pack(WHOLE if whole else CROP, *crop))
            made, size = MADE.unpack(child.receive(MADE.size))
            if not made:
                what = f"{header.format} of {header.width}x{header.height} px cannot be decoded"
                raise undecodable(f"{what}: truncated, corrupt, or it takes more than {most / 1e6:.0f} MB")
            if size != math.prod(shape):
                raise DiedError("nonsense")
            return np.frombuffer(child.receive(size), np.uint8).reshape(shape), header

    def _count(self, outcome: SandboxOutcome) -> None:
        with self._lock:
            self.images[outcome] += 1

    def _words(self, info: ImageInfo, reason: DeathReason) -> str:
        """Say in words why a child died, with the limit."""
        why = {
            "cpu": f"it takes more than {self.cpu_seconds:g} s of CPU",
            "late": f"no answer within {self.answer_seconds:g} s, twice",
            "crash": "its decoder crashed",
            "nonsense": "its decoder gave no sound answer",
            "killed": "its decoder was killed from outside, twice",
        }[reason]
        return f"{info.format} {'was not' if reason in _OUTSIDE else 'cannot be'} decoded: {why}"


def _header(child: Child, info: ImageInfo) -> ImageInfo:
    """Receive what a child has read from an image's header."""
    opened, mode, width, height, orientation, frames = FOUND.unpack(child.receive(FOUND.size))
    if not opened:
        raise undecodable(f"{info.format} header is broken or cut off")
    mode = mode.rstrip(b"\0").decode("latin-1")
    if re.fullmatch(r"[\w;]+", mode, re.ASCII) is None or orientation not in range(1, 9):
        raise DiedError("nonsense")
    return replace(info, width=width, height=height, mode=mode, orientation=orientation, frames=frames)


def _check_mode(header: ImageInfo) -> None:
    # Pillow opens 16-bit PPM in mode I. In other formats, samples of that mode have no known range.
    if header.mode not in _MODES and (header.format, header.mode) != ("PPM", "I"):
        raise unsupported(f"{header.format} of mode {header.mode} is not accepted: expected 8 or 16 bit samples")


def _end_all(children: deque[Child]) -> None:
    while children:
        children.pop().end()
