"""Server processes without the seconds that their imports take: forked from a process that has done them."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import IO

import pytest

# Runs once a session. What it is sent: the program's text, arguments and environment, with a socket to tell the pid and
# then the exit code on, stdout and stderr. A child leaves the loop and becomes the program. It ends without taking
# modules apart, for which Python needs a second and a half.
_FORKER = """
import atexit, gc, json, os, select, socket, sys, threading
import sympy, timm, uvicorn.server
import milkweed.cli, milkweed.server.process.serve

def serve_forks(control):
    running = {}
    gc.freeze()
    while True:
        for ready in select.select([control, *running], [], [])[0]:
            if ready is not control:
                pid, told = running.pop(ready)
                os.close(ready)
                told.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                told.close()
                continue
            data, fds, _, _ = socket.recv_fds(control, 1 << 20, 3)
            if not data:
                sys.exit()
            told, out, err = socket.socket(fileno=fds[0]), *fds[1:]
            if not (pid := os.fork()):
                for fd in running:
                    os.close(fd)
                for _, other in running.values():
                    other.close()
                for fd, place in ((out, 1), (err, 2)):
                    os.dup2(fd, place)
                    os.close(fd)
                told.close()
                control.close()
                return json.loads(data)
            os.close(out)
            os.close(err)
            told.send(b"%d" % pid)
            running[os.pidfd_open(pid)] = pid, told

program, sys.argv, environment = serve_forks(socket.socket(fileno=int(sys.argv[1])))
os.environ.clear()
os.environ.update(environment)
try:
    exec(program)
except SystemExit as end:
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(end.code or 0)
"""


class Forked:
    """One process; has of `subprocess.Popen` what tests use."""

    def __init__(self, pid: int, told: socket.socket, stdout: IO[str], stderr: IO[str]) -> None:
        self.pid, self.stdout, self.stderr = pid, stdout, stderr
        self.returncode: int | None = None
        self._told = told

    def poll(self) -> int | None:
        return self._hear(0)

    def wait(self, timeout: float) -> int:
        code = self._hear(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("milkweed serve", timeout)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and we are about to be told
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _hear(self, timeout: float) -> int | None:
        if self.returncode is None:
            self._told.settimeout(timeout)
            try:
                self.returncode = int(self._told.recv(100))
            except (BlockingIOError, TimeoutError):
                return None
            self._told.close()
        return self.returncode


class Forker:
    """The process they are forked from; it ends with `close`."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _FORKER, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # not a terminal: buffered as a pipe is
                env=environment,
            )

    def start(self, program: str, arguments: list[str], environment: dict[str, str]) -> Forked:
        """A process that runs `program` as `python -c` would."""
        told, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        sent = json.dumps([program, ["-c", *arguments], environment]).encode()
        socket.send_fds(self._control, [sent], [theirs.fileno(), out_end, err_end])
        for end in (out_end, err_end):
            os.close(end)
        theirs.close()
        return Forked(int(told.recv(100)), told, open(out), open(err))

    def close(self) -> None:
        self._control.close()
        self._process.kill()
        self._process.wait()


def environment() -> dict[str, str]:
    """The variables of a process of ours: none that tests have set for milkweed, and one thread for torch."""
    return {**{k: v for k, v in os.environ.items() if not k.startswith("MILKWEED_")}, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def forker() -> Iterator[Forker]:
    """One for all files that a process tests, started with the first of them."""
    with contextlib.closing(Forker(environment())) as running:
        yield running
