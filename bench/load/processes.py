"""Client processes that share one plan's load: so that one core of client is not what is measured.

A process gets its plan through a pipe, says that it is there, begins when told, and sends its samples. It imports
nothing heavy.
"""

import gc
import os
import resource
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any

from .client import run_client
from .plan import Plan
from .samples import Samples, merged

LEAD_SECONDS = 0.2  # from the last process that is there to the beginning of the row
NICE = -10  # A client that waits for a core measures the machine, not the server; taken where it is allowed


class Clients:
    """Processes with a plan each, ready to begin within `with Clients(plan, 2) as clients`."""

    def __init__(self, plan: Plan, count: int = 1) -> None:
        environment = {**os.environ, "PYTHONSAFEPATH": "1"}
        self._plans = [plan.share(number, count) for number in range(count)]
        self._processes, self._pipes = list["subprocess.Popen[bytes]"](), list[Connection]()
        for _ in range(count):
            pipe, other = Pipe()
            with other:
                command = [sys.executable, "-m", __name__, str(other.fileno())]
                self._processes.append(subprocess.Popen(command, pass_fds=[other.fileno()], env=environment))
            self._pipes.append(pipe)

    def __enter__(self) -> "Clients":
        try:
            for pipe, plan in zip(self._pipes, self._plans, strict=True):
                pipe.send(plan)
            self._receive("did not start")
        except (OSError, RuntimeError):
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            if process.poll() is None:
                process.terminate()
            process.wait()
            pipe.close()

    def begin(self) -> float:
        """Let them begin; monotonic seconds of the row's beginning, a moment from now."""
        at = time.monotonic() + LEAD_SECONDS
        for pipe in self._pipes:
            pipe.send(at)
        return at

    def stop(self) -> None:
        """End the row early: nothing more is sent."""
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.send(None)

    def results(self) -> Samples:
        """Wait for the end of the row.

        Raises:
            RuntimeError: a client process broke down.
        """
        return merged(self._receive("broke down"))

    def _receive(self, failure: str) -> list[Any]:
        """What each process sends next; a RuntimeError says of one that ended what it failed at."""
        received = []
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            try:
                received.append(pipe.recv())
            except (EOFError, OSError):
                raise RuntimeError(f"a client process {failure}, exit code {process.wait()}") from None
        return received


def run_plan(plan: Plan, clients: int = 1) -> Samples:
    """Run the whole row of a plan, from so many processes."""
    with Clients(plan, clients) as running:
        running.begin()
        return running.results()


def main(descriptor: int) -> None:
    """Run one plan as a client process. Whatever comes through the pipe meanwhile, or its end, stops the row early."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection each
    with Connection(descriptor) as pipe:
        plan = pipe.recv()
        pipe.send(None)
        begin = pipe.recv()
        gc.disable()  # a pause of the client would count as the server's
        pipe.send(run_client(plan, begin, descriptor))


if __name__ == "__main__":
    main(int(sys.argv[1]))
