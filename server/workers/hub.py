"""Hub: the engine's side of all workers: takes them in, tells them how things stand, keeps the metrics of all."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator

import msgspec
import psutil
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ..errors import ServiceError
from ..exposition import exposition
from ..service import Service
from ..statistics import count_answers
from . import messages
from .arena import Arena
from .board import Board
from .link import Link, card_of
from .reports import Reports

logger = logging.getLogger("milkweed.workers")

BEAT_SECONDS = 0.1


class Hub:
    """Belongs to the event loop, where not said.

    Args:
        listener: a Unix socket that workers connect to.
    """

    def __init__(self, service: Service, board: Board, listener: socket.socket) -> None:
        self._service, self._board, self._listener = service, board, listener
        self._links: list[Link] = []
        self._pids: dict[int, int] = {}  # by worker, of the last that was here
        self._restarts: dict[int, int] = {}
        self._reports = Reports(service.metrics.registry, lambda: list(self._links))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._catalogue: object = None
        self._state: messages.State | None = None
        service.metrics.collect_with(self._collect)

    @property
    def registry(self) -> CollectorRegistry:
        """The metrics of all processes."""
        return self._reports.registry

    @property
    def workers(self) -> int:
        """That are connected."""
        return len(self._links)

    def start(self) -> None:
        """Take workers in from now on."""
        self._loop = asyncio.get_running_loop()
        self._reports.start()
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept)
        self._service.rollout.changed = self.publish
        self._beat()

    def stop(self) -> None:
        """Take in no more, and let those go that are there."""
        if self._loop is not None:
            self._loop.remove_reader(self._listener)
        if self._timer is not None:
            self._timer.cancel()
        for link in list(self._links):
            link.channel.close()

    def _accept(self) -> None:
        assert self._loop is not None
        with contextlib.suppress(BlockingIOError):
            peer, _ = self._listener.accept()
            self._loop.create_task(self._welcome(peer))

    async def _welcome(self, peer: socket.socket) -> None:
        """A worker's arena comes with its first byte, which it sends at once."""
        peer.settimeout(1.0)
        try:
            _, files, _, _ = await asyncio.to_thread(socket.recv_fds, peer, 1, 1)
            arena = Arena(files[0])
        except (OSError, IndexError, ValueError):
            logger.exception("a worker could not be taken in")
            peer.close()
            return
        peer.setblocking(False)
        link = Link(
            self._service,
            arena,
            introduced=self._introduced,
            report=self._reports.take,
            answer=self._answer,
            gone=self._gone,
            promised=self._promise,
        )
        self._links.append(link)
        await asyncio.get_running_loop().create_connection(lambda: link.channel, sock=peer)
        if self._state is not None:
            link.channel.send(self._state)
        if self._service.models:
            link.show(list(self._service.models.every()), self._now())

    def _introduced(self, link: Link) -> None:
        """Another process under a worker's number is one that was started again."""
        before = self._pids.get(link.worker, link.pid)
        self._restarts[link.worker] = self._restarts.get(link.worker, 0) + (before != link.pid)
        self._pids[link.worker] = link.pid

    def _gone(self, link: Link) -> None:
        self._links.remove(link)
        self._reports.gone(link)

    def _beat(self) -> None:
        """Tell all what has changed."""
        assert self._loop is not None
        self._board.beat()
        self._promise()
        self.publish()
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)

    def publish(self) -> None:
        """Tell the workers what is served and how the service is, where that has changed."""
        service = self._service
        if service.models is not self._catalogue and (service.models or self._catalogue is not None):
            self._catalogue = service.models
            models, now = list(service.models.every()), self._now()
            for link in self._links:
                link.show(models, now)
        state = messages.State(
            service.draining,
            _trouble(service.check_engine),
            _trouble(service.check_ready),
            _trouble(service.check_alive),
        )
        if state != self._state:
            self._state = state
            for link in self._links:
                link.channel.send(state)

    def _now(self) -> messages.Catalogue:
        models = self._service.models
        return messages.Catalogue(list(models), [card_of(model) for model in models.every()], dict(models.aliases))

    def _promise(self) -> None:
        self._board.promise("interactive", self._service.wait_seconds("interactive"))
        self._board.promise("bulk", self._service.wait_seconds("bulk"))

    def _answer(self, link: Link, message: messages.Ask) -> None:
        if message.what == "order":
            link.channel.send(messages.Answer(message.id, b"", ""))
            return
        assert self._loop is not None
        self._loop.create_task(self._answer_slowly(link, message))

    async def _answer_slowly(self, link: Link, message: messages.Ask) -> None:
        if message.what == "metrics":
            body, content_type = await asyncio.to_thread(exposition, self.registry, message.accept)
        else:
            counted = await asyncio.to_thread(lambda: count_answers(self.registry.collect()))
            body, content_type = msgspec.json.encode(counted), "application/json"
        link.channel.send(messages.Answer(message.id, body, content_type))

    def _collect(self) -> Iterator[Metric]:
        """The workers themselves."""
        up = GaugeMetricFamily("milkweed_http_workers", "HTTP workers that are connected to the engine.")
        up.add_metric([], len(self._links))
        labels = ["process"]
        cpu = CounterMetricFamily("milkweed_worker_cpu_seconds", "CPU time of an HTTP worker.", labels=labels)
        memory = GaugeMetricFamily(
            "milkweed_worker_resident_bytes", "Resident memory of an HTTP worker.", labels=labels
        )
        restarts = CounterMetricFamily(
            "milkweed_http_worker_restarts", "HTTP workers that ended and were started again.", labels=labels
        )
        for worker, count in sorted(self._restarts.items()):
            restarts.add_metric([f"http-{worker}"], count)
        for link in list(self._links):
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(link.pid)
                times = process.cpu_times()
                cpu.add_metric([f"http-{link.worker}"], times.user + times.system)
                memory.add_metric([f"http-{link.worker}"], process.memory_info().rss)
        yield from (up, restarts, cpu, memory)


def _trouble(check: Callable[[], None]) -> tuple[str, str] | None:
    try:
        check()
    except ServiceError as error:
        return error.code, error.message
    return None
