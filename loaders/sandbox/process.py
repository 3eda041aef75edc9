"""Starts a child process of the sandbox, exchanges bytes with it before a deadline, and tells why it died."""

import contextlib
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

DeathReason = Literal["cpu", "late", "crash", "nonsense", "killed"]
"""The child used too much CPU time, answered too late, ended by itself, sent no answer, or was killed from outside."""

_CRASHES = {getattr(signal, f"SIG{name}") for name in ("SEGV", "BUS", "ABRT", "ILL", "FPE", "SYS", "TRAP")}

_PACKAGES = str(Path(PIL.__file__).parent.parent)
# By default glibc returns the memory of each picture to the kernel and asks for it again for the next one, which costs
# 1.2 ms of page faults. With these settings a child keeps up to 16 MiB; blocks above 4 MiB are still returned.
_ENVIRONMENT = {"MALLOC_TRIM_THRESHOLD_": str(16 << 20), "MALLOC_MMAP_THRESHOLD_": str(4 << 20)}


class DiedError(Exception):
    """The child died, or cannot be used any more; `reason` says why."""

    def __init__(self, reason: DeathReason) -> None:
        super().__init__(reason)
        self.reason = reason


class Child:
    """One child process. Only one thread at a time may use it.

    Args:
        memory_bytes: memory that the child may map beyond what its own start took.
        cpu_seconds: CPU time that it may use for one image.
        seconds: wall time that its start may take.

    Raises:
        LoaderError: the child cannot be started here.
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
            refused = self.end() == child.FILTER_REFUSED
            why = "seccomp gives it no filter here" if refused else f"exit status {self.process.returncode}"
            raise LoaderError(f"the decoder of rare formats did not start: {why}")

    def is_waiting(self) -> bool:
        """Tell whether the child is alive and all that it sent has been read, so that it can be asked again."""
        return not _ready(self._stdout.fileno(), select.POLLIN, 0)

    def send(self, *parts: bytes) -> None:
        """Write all parts before `deadline`; raises DiedError."""
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
        """Read exactly `size` bytes before `deadline`; raises DiedError."""
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
        """Kill the child if this process started it, and close the pipes.

        Returns:
            Its exit status, or minus the signal that ended it.
        """
        if self._owner == os.getpid():
            self.process.kill()
            self.process.wait()
        else:
            self.process.returncode = 0  # in a fork: only the process that started the child can wait for it
        self._stdin.close()
        self._stdout.close()
        return self.process.returncode

    def _wait(self, pipe: int, event: int) -> None:
        if not _ready(pipe, event, self.deadline - time.monotonic()):
            raise DiedError("late")

    def _death(self) -> DiedError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)  # its pipes are closed a moment before its exit status is there
        number = -(self.process.returncode or 0)
        if number in (signal.SIGPROF, signal.SIGXCPU):
            return DiedError("cpu")
        return DiedError("killed" if number > 0 and number not in _CRASHES else "crash")


def _started(*arguments: str) -> subprocess.Popen[bytes]:
    try:
        # -S leaves out site-packages and the code of .pth files; the child adds the folder of Pillow itself.
        return subprocess.Popen(
            (sys.executable, "-I", "-S", *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd="/",
            env=_ENVIRONMENT,
            process_group=0,  # no new session, where Linux would give the child as much CPU as all of ours together
        )
    except OSError as error:
        raise LoaderError(f"the decoder of rare formats cannot be started: {error.strerror}") from None


def _ready(pipe: int, event: int, seconds: float) -> bool:
    """Wait at most so many seconds until the pipe can be read or written, or its other end is closed."""
    poll = select.poll()
    poll.register(pipe, event)
    return bool(poll.poll(max(0.0, 1000 * seconds)))
