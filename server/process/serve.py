"""Runs the service as a process: sockets, signals, all ports, the exit code."""

import contextlib
import ctypes
import faulthandler
import gc
import logging
import os
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from ...models.errors import printable
from ..config.settings import Settings
from ..http.transport.connection_table import ConnectionTable
from ..http.transport.sockets import RELAYED_FILES, allow_files, listen, url_of
from ..repository.served_model import ServedModel
from ..security.tls import Tls
from ..service.service import Service
from ..telemetry.logs import configure_logs
from .http_server import HttpServer, exit_now
from .service_app import create_app
from .side_ports import SidePorts

logger = logging.getLogger("milkweed.serve")

# How long a thread may run Python while others wait for it; CPython's own 5 ms are as long as a whole request. Whenever
# one thread was busy for long (with a large body or answer), each step of all others began with such a wait.
SWITCH_SECONDS = 0.001

COLLECT_AFTER = 10_000  # containers made and not yet freed, from one collection of the youngest to the next

_PR_SET_DUMPABLE = 4


def keep_memory_private() -> None:
    """Let no process of the same user read this one's memory, trace it, or find keys in a core dump (Linux alone)."""
    if sys.platform == "linux" and ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        logger.warning("other processes of this user can read the memory of this one: prctl refuses PR_SET_DUMPABLE")


def run_server(settings: Settings, bundles: Mapping[str, Path]) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code of the process.

    Args:
        bundles: where each served model lies, by name; the first one is the default.

    Returns:
        0 after a clean end; 1 when a model cannot be loaded, after one line that says why, or when the engine did not
        end in time.

    Raises:
        PortError: a port is in use or not ours to take.
    """
    configure_logs(settings.log_level, settings.log_format)
    imports = _seconds_since_start()
    sys.setswitchinterval(SWITCH_SECONDS)
    with contextlib.suppress(OSError, ValueError):  # stderr may not be a file
        faulthandler.enable()  # a crash in a native library then tells the thread and the call
    with listen(settings.host, settings.port) as listener:
        return _Run(settings, bundles, listener, imports).run()


class _Run:
    """One run of the server, from sockets to exit code.

    Args:
        imports: seconds from the start of the process until now.
    """

    def __init__(
        self, settings: Settings, bundles: Mapping[str, Path], listener: socket.socket, imports: float
    ) -> None:
        self._listener, self._imports, self._began = listener, imports, time.perf_counter()
        self._app = create_app(settings, bundles, on_prepared=self._on_prepared, on_ended=self._on_engine_ended)
        state = self._app.state
        self._service: Service = state.service
        tls = Tls.of(settings, state.file_watcher)
        self._url = url_of(listener, tls is not None)
        most = allow_files(settings.max_connections, RELAYED_FILES if settings.grpc_port else 1)
        table = ConnectionTable(settings, most, self._service.metrics)
        self._service.metrics.connections.set_function(lambda: table.open)
        self._side_ports = SidePorts(self._service, state.auth, state.tracer, tls, table)
        self._server = HttpServer(self._app, self._service, self._side_ports, table=table, tls=tls)

    def run(self) -> int:
        self._side_ports.start_metrics()
        logger.info("listening", extra={"event": {"url": self._url, "pid": os.getpid()}})
        try:
            self._server.run(sockets=[self._listener])
        finally:
            gc.unfreeze()
            self._side_ports.stop_metrics()
        if not self._app.state.stopped_clean:
            logger.error("the engine did not end within %s s", self._service.settings.drain_seconds)
            exit_now(1)  # its threads would keep the interpreter from ending
        return int(self._server.failed)

    def _on_prepared(self, error: BaseException | None) -> None:
        """The models are warm, or could not be loaded."""
        if self._server.signalled:  # the port is closed, and Ctrl-C may have made the load fail
            return
        if error is None:
            log_models(self._service.models.values(), self._url)
            self._log_start()
        else:
            log_failure(error)
            self._server.fail()

    def _log_start(self) -> None:
        """Tell where the time from the start of the process until now went."""
        models = list(self._service.models.values())
        seconds = {
            "imports": self._imports,
            "read": sum(model.load_seconds for model in models),
            "warm_up": sum(model.warmup_seconds for model in models),
            "total": self._imports + time.perf_counter() - self._began,
        }
        seconds = {name: round(spent, 3) for name, spent in seconds.items()}
        logger.info("ready", extra={"event": {"models": len(models), "seconds": seconds}})

    def _on_engine_ended(self) -> None:
        """Exit with 1, so that the supervisor starts the process again; waiting clients have been answered."""
        logger.error("the engine has ended: the process ends with 1")
        self._server.fail()


def _seconds_since_start() -> float:
    """Seconds since this process was started."""
    created = psutil.Process().create_time()
    if sys.platform != "linux":
        return time.time() - created
    # The kernel counts from the boot, which is known to a whole second only, and is part of what psutil tells.
    return time.clock_gettime(time.CLOCK_BOOTTIME) - (created - psutil.boot_time())


def log_failure(error: BaseException) -> None:
    """Tell why the models could not be loaded: in one line where the user can mend it, else with the traceback."""
    if isinstance(error, ValueError | OSError):
        print(f"milkweed: error: {printable(str(error))}", file=sys.stderr, flush=True)
    else:
        logger.error("the models could not be loaded", exc_info=error)


def log_models(models: Iterable[ServedModel], url: str) -> None:
    """The models are warm: print what is served, and exempt it from garbage collection."""
    # The collector would walk the models again and again, which took 0.1 ms of each request. Requests leave no cycles,
    # but in a crowd of them it walked all that were alive, while everybody waited: from now on it seldom runs.
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    for model in models:
        line = (
            f"milkweed serves {model.name} ({model.config.arch}, version {model.version}) "
            f"on {url} | device {model.device}, {model.pipeline.plan} | "
            f"loader {model.loader} | dtype {model.dtype} | kernels {model.kernels}"
        )
        print(printable(line), flush=True)
