"""Server processes that are measured: the start and end of ours and of others, and what they cost."""

import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import Any

import psutil

from .load.plan import host_of
from .ports import free_port

START_SECONDS, ASK_EVERY_SECONDS = 120.0, 0.02  # a start of a second is measured with it
OUR_END_SECONDS = 60.0  # it drains for 30
EXEC_SECONDS = 1.0  # a process that is older and has its parent's command line is a worker that was forked

_SERVE = """
import json, os, signal, sys, threading
from pathlib import Path
def end_with_the_parent():  # which may be killed: then nobody holds the other end
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=end_with_the_parent, daemon=True).start()
from milkweed.server.config.sources import load_settings
settings = load_settings({"metrics_port": 0, **json.loads(sys.argv[2])})
from milkweed.server.process.serve import run_server
sys.exit(run_server(settings, {"bench": Path(sys.argv[1])} if sys.argv[1] else {}))
"""

_SLOW = """
import time
from milkweed.inference.torch_forward import TorchForward
quick = TorchForward.run
def slow(self, pixels):
    time.sleep({seconds})
    return quick(self, pixels)
TorchForward.run = slow
"""


def slow_device(seconds: float) -> str:
    """A prelude with which each batch that torch computes takes so much longer, without the CPU.

    The sleep is not in the model, since a recorded forward has no Python left.
    """
    return _SLOW.format(seconds=seconds)


@contextmanager
def running_server(
    bundle: Path | None, settings: Mapping[str, Any] | None = None, prelude: str = ""
) -> Iterator[tuple[psutil.Popen, str]]:
    """A server process of ours on a free port, warm; its URL.

    Args:
        bundle: None stands for a repository, which the settings name.
        settings: those that are not to be as usual, by field name.
        prelude: Python that it runs before milkweed.

    Raises:
        RuntimeError: it did not start in START_SECONDS, with the last that it printed; or it did not end.
    """
    all_settings = {"host": "127.0.0.1", **(settings or {})}
    all_settings["port"] = int(all_settings.get("port", 0)) or free_port()
    command = [sys.executable, "-c", prelude + _SERVE, str(bundle or ""), json.dumps(all_settings)]
    url = f"http://{host_of((all_settings['host'], all_settings['port']))}"
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    failure = f"the server did not start with bundle {bundle}"
    with running_process(command, url + "/readyz", failure, OUR_END_SECONDS, env=environment, stdin=PIPE) as process:
        yield process, url
    if process.returncode == -signal.SIGKILL:
        raise RuntimeError(f"the server did not end within {OUR_END_SECONDS:g} s of SIGTERM")


@contextmanager
def running_process(
    command: Sequence[str], ready: str, failure: str, end_seconds: float, **options: Any
) -> Iterator[psutil.Popen]:
    """Run a process until the context ends, from when the URL `ready` answers 200; end it with all that it started.

    Args:
        failure: begins the error of one that does not start; the last that it said ends it.
        end_seconds: from SIGTERM to SIGKILL.
        options: of Popen.

    Raises:
        RuntimeError: it ended, or was not ready in START_SECONDS.
    """
    with tempfile.TemporaryFile("w+") as said:
        process = psutil.Popen(command, stdout=said, stderr=said, **options)
        try:
            if not _is_ready(process, ready):
                said.seek(0)
                raise RuntimeError(f"{failure}: {' '.join(said.read()[-600:].split())}")
            yield process
        finally:
            _end(process, end_seconds)


def _is_ready(process: psutil.Popen, url: str) -> bool:
    """Ask until the URL answers with 200, the process ends, or it has taken too long."""
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        with suppress(OSError), urllib.request.urlopen(url, timeout=2) as answer:
            if answer.status == 200:
                return True
        time.sleep(ASK_EVERY_SECONDS)
    return False


def _end(process: psutil.Popen, seconds: float) -> None:
    """SIGTERM, then SIGKILL for what is left of it and its descendants: some leave orphans behind."""
    family = []
    with suppress(psutil.NoSuchProcess):
        family = process.children(recursive=True)
        process.terminate()
    _, alive = psutil.wait_procs([process, *family], timeout=seconds)
    for left in alive:
        with suppress(psutil.NoSuchProcess):
            left.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def stage_cpu_seconds(url: str) -> dict[str, float]:
    """CPU seconds by stage since the server's start, from its metrics."""
    with urllib.request.urlopen(url + "/metrics") as answer:
        text = answer.read().decode()
    samples = re.findall(r'^milkweed_stage_cpu_seconds_total\{stage="(\w+)"\} (\S+)', text, re.MULTILINE)
    return {stage: float(value) for stage, value in samples}


@dataclass(frozen=True)
class Usage:
    """CPU seconds since their start, resident and proportional bytes of so many processes."""

    cpu_seconds: float = 0.0
    rss_bytes: int = 0
    pss_bytes: int = 0
    processes: int = 0


def usage(pid: int, *, proportional: bool = True) -> Usage:
    """The usage of a process and its descendants; those that end meanwhile, or only begin, do not count.

    Args:
        proportional: also the proportional set size, which takes the kernel milliseconds a process.
    """
    cpu, rss, pss, count = 0.0, 0, 0, 0
    try:
        family = [parent := psutil.Process(pid), *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return Usage()
    for process in family:
        try:
            if process is not parent and _shares_memory(process, parent):
                continue
            times = process.cpu_times()
            rss += process.memory_info().rss
            pss += process.memory_full_info().pss if proportional else 0
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        cpu += times.user + times.system
        count += 1
    return Usage(cpu, rss, pss, count)


def _shares_memory(process: psutil.Process, parent: psutil.Process) -> bool:
    """Whether a child has just been forked: until it executes its program, it is seen with all memory of its parent."""
    return time.time() - process.create_time() < EXEC_SECONDS and process.cmdline() == parent.cmdline()


@contextmanager
def repeated(call: Callable[[], object], every_seconds: float) -> Iterator[None]:
    """Call something from a thread of its own, again and again, for as long as the context lasts."""
    over = threading.Event()

    def go_on() -> None:
        while not over.wait(every_seconds):
            call()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
