"""Fixtures shared by all rooms: where the shared reference data lies, and the `gpu` marker; how many processes test."""

import gc
import inspect
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
import torch

from milkweed.inference import backend, device
from milkweed.inference.device import usable_cores
from milkweed.models import measurements
from milkweed.models.onnx import openvino_session
from milkweed.server.service import service
from milkweed.server.telemetry.system_metrics import container_memory

from .support.colours import colour_bundle, colour_photos, loose_photos
from .support.forked import forker
from .support.graphs import colour_graph, graph_alone, graph_and_weights
from .support.waiting import HANG_SECONDS

__all__ = [
    "colour_bundle",
    "colour_graph",
    "colour_photos",
    "forker",
    "graph_alone",
    "graph_and_weights",
    "loose_photos",
]

# Processes that test share the cores: NumPy's threads of one would spin for what another's keep waiting.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parent.parent
MOST_WORKERS = 4
WORKER_BYTES = 4 << 30
"""What a process that tests takes, with the processes that it starts."""


@pytest.hookimpl(optionalhook=True)  # `make test-floors` has no pytest-xdist
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Tell `-n auto` how many workers have a core and memory each, and one more, since tests wait; 0 with a GPU, which
    one process alone must test."""
    if torch.cuda.is_available():
        return 0
    container = container_memory()
    memory = psutil.virtual_memory().available
    if container is not None:
        memory = min(memory, container.limit - container.working_set)
    workers = min(MOST_WORKERS, usable_cores() + 1, memory // WORKER_BYTES)
    return workers if workers > 1 else 0


def pytest_configure(config: pytest.Config) -> None:
    """Share the cores out among the processes that test; let what they start hear SIGINT; wait for answers patiently.

    A shell starts what runs in its background with SIGINT ignored, and every process would inherit that. After its
    usual 5 s httpx would give up a server that a busy machine delays.
    """
    patience = inspect.signature(httpx.get).parameters["timeout"].default
    patience.connect = patience.read = patience.write = patience.pool = HANG_SECONDS
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        torch.set_num_threads(max(1, torch.get_num_threads() // workers))


def pytest_runtest_setup() -> None:
    """Seed what a test draws without a seed of its own: it must not depend on the tests before it."""
    random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of golden vectors, weights and photographs; tests that need it skip without it."""
    path = (ROOT / os.environ.get("MILKWEED_SHARED", "../shared")).resolve()
    if not path.is_dir():
        pytest.skip(f"no reference data at {path}: set MILKWEED_SHARED")
    return path


@pytest.fixture(scope="session", autouse=True)
def cpu_of_float32() -> Iterator[None]:
    """The CPU computes in float32 alone, as far as our code can tell: so `auto` is the same wherever it is tested."""
    real = device.computes_in_bfloat16
    with pytest.MonkeyPatch.context() as patch:
        for module in (device, backend):
            patch.setattr(module, "computes_in_bfloat16", lambda where: where.type == "cuda" and real(where))
        yield


@pytest.fixture(scope="session", autouse=True)
def openvino_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Compiled models are kept here, not in the folder of whoever tests."""
    folder = tmp_path_factory.mktemp("openvino")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openvino_session, "user_cache", lambda: folder)
        yield folder


@pytest.fixture(scope="session", autouse=True)
def nothing_remembered() -> Iterator[None]:
    """Which backend was the fastest is measured by every test that opens a model, and kept by none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measurements, "user_folder", lambda: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def memory_not_walked() -> Iterator[None]:
    """A process that imported what tests import takes 20 ms to read its own memory, and each look at a metric would.

    Servers that are processes of their own do read it, and tests/server/telemetry calls what reads it.
    """
    with pytest.MonkeyPatch.context() as patch:
        for collect in ("collect_process_memory", "collect_container_memory"):
            patch.setattr(service, collect, lambda: ())
        yield


@pytest.fixture(scope="session")  # so that fixtures of a module may be async too
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums in one order whatever the machine; and tiny products, for which threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pytest_collection_finish() -> None:
    """What was imported is no garbage: else each collection of the tests, and of what they test, would walk it."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # else libraries that look for leaks at the end find these


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was not run, and for want of what."""
    skipped = terminalreporter.stats.get("skipped", [])
    for reason, tests in Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped).most_common():
        terminalreporter.write_line(f"not run ({tests}): {reason}")


@pytest.hookimpl(tryfirst=True)  # before `-m "not slow"` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `slow_beyond` leaves of a function's cases; skip tests marked `gpu` where no CUDA device is present."""
    cases: Counter[str] = Counter()
    for item in items:
        if mark := item.get_closest_marker("slow_beyond"):
            function = item.nodeid.partition("[")[0]
            cases[function] += 1
            if cases[function] > mark.args[0]:
                item.add_marker("slow")
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
