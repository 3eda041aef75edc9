"""A child of the sandbox as its parent sees it: bytes there and back before a deadline, or why it died."""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

import PIL

from ..errors import LoaderError
from . import child

DeathReason = Literal["cpu", "late", "crash", "nonsense"]
"""It took too much CPU time or too long, ended by itself, or answered what is no answer."""

_PACKAGES = str(Path(PIL.__file__).parent.parent)
# glibc would give the memory of each picture back and take it anew for the next one: 1.2 ms of page faults. So a child
# keeps up to 16 MiB; larger blocks than 4 MiB are given back all the same.
_ENVIRONMENT = {"MALLOC_TRIM_THRESHOLD_": str(16 << 20), "MALLOC_MMAP_THRESHOLD_": str(4 << 20)}


class DiedError(Exception):
    """The child is of no use any more."""

    def __init__(self, reason: DeathReason) -> None:
        super().__init__(reason)
        self.reason = reason


class Child:
    """One process; used by one thread at a time.

    Args:
        memory_bytes: that it may map beyond what its own start took.
        cpu_seconds: of one image.
        seconds: that its start may take.

    Raises:
        LoaderError: it cannot be started here.
    """

    def __init__(self, memory_bytes: int, cpu_seconds: float, seconds: float) -> None:
        self._owner, self.process = (
            os.getpid(),
            _started(child.__file__, _PACKAGES, str(memory_bytes), str(cpu_seconds)),
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout
        for pipe in (self._stdin, self._stdout):
            os.set_blocking(pipe.fileno(), False)
        self.deadline = time.monotonic() + seconds
        try:
            ready = self.receive(len(child.READY)) == child.READY
        except DiedError:
            ready = False
        if not ready:
            self.end()
            raise LoaderError(f"the decoder of rare formats did not start: exit status {self.process.returncode}")

    def is_waiting(self) -> bool:
        """Whether it lives and has said all: then it can be asked."""
        return not _ready(self._stdout.fileno(), select.POLLIN, 0)

    def send(self, *parts: bytes) -> None:
        """Write all of it before `deadline`; raises DiedError."""
        for part in parts:
            view = memoryview(part)
            while view:
                try:
                    view = view[os.write(self._stdin.fileno(), view) :]
                except BlockingIOError:
                    self._wait(self._stdin.fileno(), select.POLLOUT)
                except BrokenPipeError:
                    raise self._death() from None

    def receive(self, size: int) -> bytearray:
        """Read so many bytes before `deadline`; raises DiedError."""
        received = bytearray(size)
        view = memoryview(received)
        while view:
            try:
                count = os.readv(self._stdout.fileno(), [view])
            except BlockingIOError:
                self._wait(self._stdout.fileno(), select.POLLIN)
                continue
            if not count:
                raise self._death()
            view = view[count:]
        return received

    def end(self) -> int:
        """Kill it if it is this process's own; its exit status, or minus the signal that ended it."""
        if self._owner == os.getpid():
            self.process.kill()
            self.process.wait()
        else:
            self.process.returncode = 0  # a fork's copy: the child is its parent's to wait for
        self._stdin.close()
        self._stdout.close()
        return self.process.returncode

    def _wait(self, pipe: int, event: int) -> None:
        if not _ready(pipe, event, self.deadline - time.monotonic()):
            raise DiedError("late")

    def _death(self) -> DiedError:
        return DiedError("cpu" if -self.end() in (signal.SIGPROF, signal.SIGXCPU) else "crash")


def _started(*arguments: str) -> subprocess.Popen[bytes]:
    try:
        # -S: no site-packages but the one where this process has its Pillow, and no code of .pth files
        return subprocess.Popen(
            (sys.executable, "-I", "-S", *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd="/",
            env=_ENVIRONMENT,
            start_new_session=True,
        )
    except OSError as error:
        raise LoaderError(f"the decoder of rare formats cannot be started: {error.strerror}") from None


def _ready(pipe: int, event: int, seconds: float) -> bool:
    """Whether something can be done with the pipe within so many seconds, if only to find its other end closed."""
    poll = select.poll()
    poll.register(pipe, event)
    return bool(poll.poll(max(0.0, 1000 * seconds)))
