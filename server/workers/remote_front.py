"""The front where the engine is in another process."""

import asyncio
import contextlib
import itertools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw

from ...loaders.errors import CODES, InputError
from ...loaders.info import ImageInfo
from ..card import ModelCard
from ..catalogue import Catalogue
from ..errors import ServiceError
from ..front import Front
from ..image_limits import image_limits
from ..in_hand import InHand
from ..metrics import Metrics
from ..outcome import BatchResult, Outcome, Predictions
from ..settings import Settings
from ..statistics import ModelStatistics
from ..ticket import Priority, Ticket
from . import messages
from .board import Board, SharedHeldBytes
from .engine_connection import EngineConnection, starting
from .registry import taken_down


@dataclass(frozen=True, kw_only=True)
class RemoteModel(ModelCard):
    """A model that is served in another process.

    Args:
        about: what it says of itself.
    """

    about: dict[str, Any]

    def describe(self) -> dict[str, Any]:
        """What /v1/models says about it."""
        return self.about


class RemoteFront(Front):
    """Belongs to the event loop of a worker.

    Args:
        worker: its number.
        address: where the engine's process listens.
        names: of the models asked for at the start.
    """

    def __init__(self, settings: Settings, worker: int, board: Board, address: Path, names: Sequence[str]) -> None:
        super().__init__(
            settings,
            Metrics(process=f"http-{worker}"),
            SharedHeldBytes(settings.max_held_bytes, board, worker),
        )
        self._board, self._names = board, list(names)
        self._models: Catalogue[ModelCard] = Catalogue()
        self._state: messages.State | None = None
        self._connection = EngineConnection(
            worker, address, received=self._received, lost=self._lost, report=self._report
        )
        self._ids = itertools.count(1)
        self._waiting: dict[int, Ticket] = {}
        self._id_of: dict[Ticket, int] = {}
        self._in_hand = InHand(self._release)
        self._leaving: set[str] = set()
        self._told = asyncio.Event()

    @property
    def models(self) -> Catalogue[ModelCard]:
        """What the engine said last."""
        return self._models

    @property
    def names(self) -> Sequence[str]:
        """Of the models asked for at the start."""
        return self._names

    def start(self) -> None:
        """Look for the engine from now on, and again whenever it has gone."""
        self.begin_ticking()
        self._connection.start()

    async def wait_for_models(self, seconds: float) -> None:
        """Until the engine has said what it serves, or for so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._told.wait()

    async def stop(self) -> None:
        """Speak no more."""
        self.end_ticking()
        await self._connection.stop()

    def check_engine(self) -> None:
        """Raises ServiceError `not_ready` where the engine's process is not there, or cannot answer now."""
        if self._state is None or not self._connection.is_open:
            raise starting()
        if self._state.refuses is not None:
            raise ServiceError(*self._state.refuses, retry_after_seconds=2)

    def check_ready(self) -> None:
        """Raises ServiceError where no new traffic should be routed here."""
        super().check_ready()
        if self._state is not None and self._state.not_ready is not None:
            raise ServiceError(*self._state.not_ready, retry_after_seconds=2)

    def check_alive(self) -> None:
        """Raises ServiceError where only a restart of the whole can help: an engine that ends comes back by itself."""
        if self.draining:
            return
        if self._state is not None and self._state.not_alive is not None:
            raise ServiceError(*self._state.not_alive)
        if self._board.silent_seconds() > self.settings.engine_stall_seconds:
            raise ServiceError("internal", "the engine's process does not answer")

    def using(self, model: ModelCard) -> AbstractContextManager[None]:
        """Within, a model is in a request's hands and is not let go."""
        return self._in_hand.of(model.key)

    def wait_seconds(self, priority: Priority = "bulk") -> float:
        """When what ran and waited a moment ago should be done."""
        return self._board.wait_seconds(priority)

    def submit(self, ticket: Ticket, images: Sequence[tuple[int, bytes, ImageInfo]]) -> None:
        """Hand a request on; it fails with what speaks against it."""
        if not self._connection.is_open:
            raise starting()
        ticket.missing = len(images)
        id = next(self._ids)
        self._waiting[id], self._id_of[ticket] = ticket, id
        self._tickets.add(ticket)
        parts = [data for _, data, _ in images]
        written = self._connection.put(parts)
        self._connection.send(
            messages.Submit(
                id=id,
                model=ticket.model,
                top_k=ticket.top_k,
                deadline=ticket.deadline,
                places=len(ticket.outcomes),
                source=ticket.source,
                priority=ticket.priority,
                images=[(place, len(data), info) for place, data, info in images],
                inline=None if written else b"".join(parts),
                unseen_seconds=2 * self.lag_seconds(),
            )
        )

    async def accepted(self, ticket: Ticket) -> None:
        """Wait until a submitted request is queued; raises what speaks against it."""
        id = self._id_of.get(ticket)
        if id is None:
            return
        await self._connection.ask("order")  # messages keep theirs: once this is answered, a refusal has been said
        if ticket.waiter.done() and ticket.missing:
            error = ticket.waiter.exception()  # type: ignore[attr-defined]  # a future, here
            if isinstance(error, ServiceError):  # what passed its deadline is told where it is waited for
                raise error

    def forget(self, ticket: Ticket) -> None:
        """A request is over; where it was not answered, the engine drops what of it still waits."""
        self._tickets.discard(ticket)
        id = self._id_of.pop(ticket, None)
        if id is not None and self._waiting.pop(id, None) is not None and ticket.missing:
            self._connection.send(messages.Forget(id))

    async def exposition(self, accept: str) -> tuple[bytes, str]:
        """The metrics of all processes, which the engine's keeps."""
        answer = await self._connection.ask("metrics", accept)
        return answer.body, answer.content_type

    async def statistics(self) -> dict[str, ModelStatistics]:
        """What each model has answered, through whatever worker."""
        answer = await self._connection.ask("statistics")
        return msgspec.json.decode(answer.body, type=dict[str, ModelStatistics])

    def _lost(self) -> None:
        """The engine's process has gone: what it had in hand is lost, and whoever waits for it is told."""
        self._state = None
        self._models = Catalogue()  # the next engine will say what it serves, once it does
        self._leaving.clear()
        self.fail_all(ServiceError("not_ready", "the engine ended before the answer", retry_after_seconds=2))
        self._waiting.clear()
        self._id_of.clear()

    def _received(self, message: messages.FromEngine) -> None:
        match message:
            case messages.Outcomes():
                self._put(message)
            case messages.Failed():
                self._fail(message)
            case messages.Catalogue():
                self._take(message)
            case messages.State():
                self._state = message
                self.draining = self.draining or message.draining
            case messages.Report():
                self._report(message.serial)

    def _put(self, message: messages.Outcomes) -> None:
        ticket = self._waiting.get(message.id)
        if ticket is None:
            return  # nobody waits any more
        times = message.times
        result = None if times is None else _result(times)
        if result is not None:
            self._waiting.pop(message.id)
        for each in message.outcomes:
            ticket.put(each.place, _outcome(each), result)

    def _fail(self, message: messages.Failed) -> None:
        ticket = self._waiting.pop(message.id, None)
        if ticket is None:
            return
        if message.code == "deadline":
            ticket.fail(TimeoutError())
        else:
            error = ServiceError(message.code, message.message, retry_after_seconds=message.retry_after_seconds)
            ticket.fail(error)

    def _take(self, message: messages.Catalogue) -> None:
        """Serve what the engine serves from now on; what is not in it any more is released once nobody has it."""
        limits, known = image_limits(self.settings), {model.key: model for model in self._models.every()}
        versions: dict[str, list[ModelCard]] = {name: [] for name in message.names}
        for card in message.models:
            versions[card.name].append(
                known.get(card.key)
                or RemoteModel(
                    name=card.name,
                    version=card.version,
                    labels=tuple(card.labels),
                    num_classes=card.num_classes,
                    size=card.size,
                    limits=limits,
                    number=card.number,
                    key=card.key,
                    about=card.about,
                )
            )
        self._told.set()
        self._models = Catalogue({name: tuple(models) for name, models in versions.items()}, message.aliases)
        now = {model.key for model in self._models.every()}
        self._leaving = (self._leaving | known.keys()) - now
        for key in [key for key in self._leaving if key not in self._in_hand]:
            self._release(key)

    def _release(self, key: str) -> None:
        if key in self._leaving:
            self._leaving.discard(key)
            self._connection.send(messages.Released(key))
            if self.cache is not None:
                self.cache.forget_model(key)

    def _report(self, serial: int = 0) -> None:
        families = taken_down(self.metrics.registry.collect())
        self._connection.send(messages.Snapshot(serial, Raw(messages.encode(families))))


def _result(times: messages.Times) -> BatchResult:
    return BatchResult(
        [], times.started, times.decoded, times.launched, times.forwarded, times.finished, cpu_seconds={}
    )


def _outcome(each: messages.Good | messages.Bad) -> Outcome:
    if isinstance(each, messages.Good):
        return Predictions(each.index, each.score)
    if each.code in CODES:
        return InputError(each.code, each.message)  # type: ignore[arg-type]  # it is one of them
    return ServiceError(each.code, each.message)
