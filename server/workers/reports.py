"""Reports: the metrics of all workers, and with those of the engine's process one registry."""

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry

from . import messages
from .link import Link
from .registry import Sums, lasting

FRESH_SECONDS = 0.5
"""So long a scrape waits for the workers' reports; a worker that is busier than that is shown as it was."""


class Reports:
    """Belongs to the event loop, where not said.

    Args:
        own: of this process.
        links: the workers that are connected.
    """

    def __init__(self, own: CollectorRegistry, links: Callable[[], Iterable[Link]]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(Sums(own, self._families))
        self._links = links
        self._loop: asyncio.AbstractEventLoop | None = None
        self._newest: dict[Link, messages.Snapshot] = {}
        self._ended: list[messages.Family] = []  # of workers that have gone, what lasts
        self._serials = itertools.count(1)
        self._asked: tuple[int, tuple[Link, ...]] = (0, ())  # the last question, and whom it went to
        self._changed = threading.Condition()

    def start(self) -> None:
        """Ask the workers through the running event loop."""
        self._loop = asyncio.get_running_loop()

    def take(self, link: Link, report: messages.Snapshot) -> None:
        """A worker says how it is."""
        with self._changed:
            self._newest[link] = report
            self._changed.notify_all()

    def gone(self, link: Link) -> None:
        """A worker has gone; what it has counted stays counted."""
        with self._changed:
            report = self._newest.pop(link, None)
            if report is not None:
                self._ended = lasting([*self._ended, *messages.decode_families(report.metrics)])
            self._changed.notify_all()

    def _families(self) -> list[messages.Family]:
        """On a scraping thread: those of all workers as they are now, or were a moment ago."""
        serial = next(self._serials)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ask_all, serial)
            with self._changed:
                self._changed.wait_for(lambda: self._has_all(serial), FRESH_SECONDS)
        with self._changed:
            ended, newest = self._ended, list(self._newest.values())
        return [*ended, *(family for each in newest for family in messages.decode_families(each.metrics))]

    def _ask_all(self, serial: int) -> None:
        with self._changed:
            self._asked = (serial, tuple(self._links()))
            self._changed.notify_all()
        for link in self._asked[1]:
            link.channel.send(messages.Report(serial))

    def _has_all(self, serial: int) -> bool:
        """Whether every worker that is still there has answered this question or a later one."""
        asked, links = self._asked
        connected = set(self._links())
        return asked >= serial and all(
            link in self._newest and self._newest[link].serial >= serial for link in links if link in connected
        )
