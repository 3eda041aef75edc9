"""Client processes that share one plan's load: so that one core of client is not what is measured.

A process of it reads its plan from stdin, says that it is there, begins when told, and writes its samples. It imports
nothing heavy.
"""

import gc
import os
import pickle
import resource
import struct
import subprocess
import sys
import time
from contextlib import suppress
from subprocess import PIPE
from typing import IO, cast

from .client import run_client
from .plan import Plan
from .samples import Samples, merged

READY = b"ready\n"
BEGIN = struct.Struct("d")

LEAD_SECONDS = 0.2  # from the last process that is there to the beginning of the row
NICE = -10  # A client that waits for a core measures the machine, not the server; taken where it is allowed


class Clients:
    """Processes with a plan each, ready to begin within `with Clients(plan, 2) as clients`."""

    def __init__(self, plan: Plan, count: int = 1) -> None:
        environment = {**os.environ, "PYTHONSAFEPATH": "1"}
        command = [sys.executable, "-m", __name__]
        self._plans = [plan.share(number, count) for number in range(count)]
        self._processes = [subprocess.Popen(command, stdin=PIPE, stdout=PIPE, env=environment) for _ in self._plans]

    def __enter__(self) -> "Clients":
        for process, plan in zip(self._processes, self._plans, strict=True):
            _send(process, pickle.dumps(plan))
        for process in self._processes:
            if _output(process).readline() != READY:
                self.__exit__()
                raise RuntimeError(f"a client process did not start, exit code {process.wait()}")
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
            process.wait()
            _output(process).close()

    def begin(self) -> float:
        """Let them begin; monotonic seconds of the row's beginning, a moment from now."""
        at = time.monotonic() + LEAD_SECONDS
        for process in self._processes:
            _send(process, BEGIN.pack(at))
        return at

    def stop(self) -> None:
        """End the row early: nothing more is sent."""
        for process in self._processes:
            with suppress(OSError):
                _input(process).close()

    def results(self) -> Samples:
        """Wait for the end of the row.

        Raises:
            RuntimeError: a client process broke down.
        """
        parts = []
        for process in self._processes:
            try:
                parts.append(pickle.load(_output(process)))
            except EOFError:
                raise RuntimeError(f"a client process broke down, exit code {process.wait()}") from None
        return merged(parts)


def run_plan(plan: Plan, clients: int = 1) -> Samples:
    """Run the whole row of a plan, from so many processes."""
    with Clients(plan, clients) as running:
        running.begin()
        return running.results()


def _input(process: "subprocess.Popen[bytes]") -> IO[bytes]:
    return cast(IO[bytes], process.stdin)


def _output(process: "subprocess.Popen[bytes]") -> IO[bytes]:
    return cast(IO[bytes], process.stdout)


def _send(process: "subprocess.Popen[bytes]", data: bytes) -> None:
    _input(process).write(data)
    _input(process).flush()


def main() -> None:
    """Run one plan as a client process. A byte on stdin, or its end, stops the row early."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection each
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    plan = pickle.load(stdin)
    stdout.write(READY)
    stdout.flush()
    (begin,) = BEGIN.unpack(stdin.read(BEGIN.size))
    gc.disable()  # a pause of the client would count as the server's
    pickle.dump(run_client(plan, begin, sys.stdin.fileno()), stdout)


if __name__ == "__main__":
    main()
