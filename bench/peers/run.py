"""Runs the same rows on milkweed and on each peer, one after the other, and puts them in one document."""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..bodies import arrays, pictures
from ..load.requests import shots
from ..load.single import learned
from ..machine import machine
from ..process import running_server, slow_device
from ..server import sections
from ..server.bundles import TINY_SIZE
from ..server.request import Request
from ..server.subject import Say, Subject
from .catalogue import PEERS
from .install import missing, version_of
from .process import running_peer
from .weights import export

DEFAULT_OUT = Path("bench/results/peers.json")
OURS = "milkweed"


class Comparison:
    """One run over several servers.

    Args:
        request: what every server is asked, the rate of the open-loop row among it; its settings are our server's.
        venvs: folder of the peers' environments.
        device_ms: that a batch takes besides, without the CPU, in the overload rows: so that the device is what there
            is too little of, not the cores that the client needs too.
        say: called with each row that is done.
        note: gets a line for each server that is started or skipped.
    """

    def __init__(
        self, request: Request, venvs: Path, device_ms: float, say: Say, note: Callable[[str], None] = print
    ) -> None:
        self._request, self._venvs, self._device_ms = request, venvs, device_ms
        self._say, self._note = say, note

    def run(self, names: Sequence[str]) -> dict[str, Any]:
        """Measure each in turn. One that cannot be measured is a row that says why."""
        with tempfile.TemporaryDirectory() as folder:
            bundle, weights = export(Path(folder))
            servers = [self._server(name, bundle, weights) for name in names]
        settings = {"peers": names, "venvs": str(self._venvs), "device_ms": self._device_ms}
        return {
            "benchmark": "peers",
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "machine": machine(),
            "settings": self._request.document() | settings,
            "servers": servers,
        }

    def _server(self, name: str, bundle: Path, weights: Path) -> dict[str, Any]:
        """All of one server."""
        why = None if name == OURS else missing(PEERS[name], self._venvs)
        load_before, described = round(os.getloadavg()[0], 2), self._described(name, why is None)
        rows: list[dict[str, Any]] = []
        if why is None:
            self._note(f"{name}: starting")
            try:
                with self._started(name, bundle, weights, 0.0) as (pid, url):
                    self._measure(self._subject(name, url, pid, rows))
                with self._started(name, bundle, weights, self._device_ms) as (pid, url):
                    self._overload(self._subject(name, url, pid, rows))
            except RuntimeError as error:
                why = str(error)
        if why is not None:
            self._note(f"{name}: skipped: {why}")
        return {**described, "load_average_before": load_before, "skipped": why, "rows": rows}

    def _measure(self, subject: Subject) -> None:
        """What is asked of every server."""
        subject.warm_up()
        most = sections.capacity(subject)
        sections.load(subject, most)
        sections.malformed(subject, most)

    def _overload(self, subject: Subject) -> None:
        """With a slow device: its capacity, then twice that."""
        subject.warm_up()
        most = sections.capacity(subject, "slow device,", section="slow")
        sections.overload(subject, most, tells=subject.name == OURS)

    @contextmanager
    def _started(self, name: str, bundle: Path, weights: Path, device_ms: float) -> Iterator[tuple[int, str]]:
        if name == OURS:
            prelude = slow_device(device_ms / 1e3) if device_ms else ""
            with running_server(bundle, self._request.settings, prelude) as (process, url):
                yield process.pid, url
        else:
            with running_peer(PEERS[name], self._venvs, weights, device_ms) as found:
                yield found

    def _subject(self, name: str, url: str, pid: int, rows: list[dict[str, Any]]) -> Subject:
        images, request = pictures(TINY_SIZE), self._request
        if name == OURS:
            plan = request.plan(url, shots("npy", arrays(images)))
        else:
            peer = PEERS[name]
            plan = request.plan(url, peer.shots(images), peer.path, peer.answer)
        return Subject(name, learned(plan), request, pid, self._say, rows)

    def _described(self, name: str, there: bool) -> dict[str, Any]:
        if name == OURS:
            return {"name": name, "version": version("milkweed"), "body": "npy", "batching": "as it comes"}
        peer = PEERS[name]
        found = version_of(peer, self._venvs) if there else None
        return {"name": name, "version": found, "body": peer.body, "batching": peer.settings}
