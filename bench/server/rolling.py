"""Rolling restarts under load: two servers, one after the other told to end, none of whose requests may be lost."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..http_overhead import running_server
from ..load.endpoints import target_of
from ..load.plan import Plan, Watch
from ..load.processes import Clients
from .ports import free_port
from .subject import Subject

SETTLE_SECONDS = 1.0
"""Of load before the first restart, between two, and after the last."""

FOREVER_SECONDS = 24 * 3600.0


def rolling(
    subject: Subject, bundle: Path, settings: Mapping[str, Any], *, restarts: int, rate: float, watch: Watch
) -> None:
    """Book one row: requests lost over so many restarts, half of them of each server.

    The client is a load balancer that hears of a server's readiness late: it sends to all servers in turn whose
    absence has become known, over kept connections; it never sends again what a connection lost; a 503 goes to the
    other server. As in Kubernetes, where a pod is told to end at the moment its endpoint begins to be removed.
    """
    ports = (free_port(), free_port())
    servers = [_Server(bundle, {**settings, "port": port}) for port in ports]
    try:
        for server in servers:
            server.start()
        plan = replace(
            subject.plan,
            targets=tuple(target_of(server.url) for server in servers),
            seconds=FOREVER_SECONDS,
            rate=rate,
            connections=2000,
            watch=watch,
        )
        _book(subject, servers, plan, restarts)
    finally:
        for server in servers:
            server.stop()


def _book(subject: Subject, servers: list["_Server"], plan: Plan, restarts: int) -> None:
    watch = plan.watch
    assert watch is not None

    def restart_all(_: Clients) -> None:
        known_seconds = watch.every_seconds + watch.delay_seconds + SETTLE_SECONDS
        time.sleep(SETTLE_SECONDS)
        for number in range(restarts):
            server = servers[number % len(servers)]
            server.stop()
            server.start()
            time.sleep(known_seconds)  # it gets requests again before the next one is told to end

    row = replace(subject, pids=(), stages=dict, rows=subject.rows).row(
        "rolling", f"{restarts} restarts of 2 servers", plan, during=restart_all
    )
    row["restarts"] = restarts
    row["watch"] = {"every_seconds": watch.every_seconds, "delay_seconds": watch.delay_seconds}
    row["exit_codes"] = sorted({code for server in servers for code in server.exit_codes})


class _Server:
    """A server that is started and told to end on one port, again and again."""

    def __init__(self, bundle: Path, settings: Mapping[str, Any]) -> None:
        self._bundle, self._settings = bundle, settings
        self._stack = ExitStack()
        self.url = ""
        self.exit_codes: list[int] = []

    def start(self) -> None:
        """Start it and wait until it is warm."""
        self._process, self.url = self._stack.enter_context(running_server(self._bundle, self._settings))

    def stop(self) -> None:
        """SIGTERM, and wait for the end; nothing where it does not run."""
        if self.url:
            self._stack.close()
            self.url = ""
            self.exit_codes.append(self._process.returncode)
