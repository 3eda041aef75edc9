"""Link: the engine's side of one worker: its requests in the queue, and the models it has in hand."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack

from ..errors import ServiceError
from ..outcome import Outcome, Predictions
from ..served import ServedModel
from ..service import Service
from ..ticket import Ticket
from . import messages
from .arena import Arena
from .channel import Channel


class Remote:
    """A request of a worker: where its outcomes go, and what wakes it, which is a message."""

    def __init__(self, id: int, channel: Channel, over: Callable[["Remote"], None]) -> None:
        self.id = id
        self.ticket: Ticket | None = None
        self._channel, self._over = channel, over
        self._outcomes: list[messages.Good | messages.Bad] = []
        self._done = False

    def put(self, place: int, outcome: Outcome) -> None:
        """An image is done; what comes in one go of the event loop is said in one message."""
        if isinstance(outcome, Predictions):
            each: messages.Good | messages.Bad = messages.Good(place, outcome.index, outcome.score)
        else:
            each = messages.Bad(place, outcome.code, outcome.message)
        self._outcomes.append(each)
        if len(self._outcomes) == 1:
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self, times: messages.Times | None = None) -> None:
        """Say what was not said yet."""
        if self._outcomes or times is not None:
            self._channel.send(messages.Outcomes(self.id, self._outcomes, times))
            self._outcomes = []

    def done(self) -> bool:
        """Whether it was woken."""
        return self._done

    def set_result(self, result: None) -> None:
        """Its last outcome is in."""
        self._done = True
        assert self.ticket is not None
        last = self.ticket.last
        assert last is not None
        self.flush(messages.Times(last.started, last.decoded, last.launched, last.forwarded, last.finished))
        self._over(self)

    def set_exception(self, exception: BaseException) -> None:
        """It ends without all outcomes."""
        self._done = True
        self.flush()
        if isinstance(exception, ServiceError):
            failed = messages.Failed(self.id, exception.code, exception.message, exception.retry_after_seconds)
        else:
            failed = messages.Failed(self.id, "deadline", "", None)
        self._channel.send(failed)
        self._over(self)


class Link:
    """Belongs to the event loop.

    Args:
        introduced: called once `worker` and `pid` are known.
        report: told of a worker's metrics.
        answer: told what a worker asks for.
        gone: called once the worker has.
        promised: called when the queue has changed.
    """

    def __init__(
        self,
        service: Service,
        arena: Arena,
        *,
        introduced: Callable[["Link"], None],
        report: Callable[["Link", messages.Snapshot], None],
        answer: Callable[["Link", messages.Ask], None],
        gone: Callable[["Link"], None],
        promised: Callable[[], None],
    ) -> None:
        self.worker = self.pid = -1
        self.channel = Channel(messages.decode_from_worker, self._received, self._lost)
        self._service, self._arena = service, arena
        self._introduced, self._report, self._answer = introduced, report, answer
        self._gone, self._promised = gone, promised
        self._requests: dict[int, Remote] = {}
        self._models: dict[str, ExitStack] = {}  # by key: what the worker may have in hand

    def show(self, models: list[ServedModel], catalogue: messages.Catalogue) -> None:
        """These are served from now on; they are not let go before the worker says so."""
        for model in models:
            if model.key not in self._models:
                held = self._models[model.key] = ExitStack()
                held.enter_context(self._service.using(model))
        self.channel.send(catalogue)

    def _received(self, message: messages.FromWorker) -> None:
        match message:
            case messages.Submit():
                self._submit(message)
            case messages.Forget():
                remote = self._requests.pop(message.id, None)
                if remote is not None and remote.ticket is not None:
                    self._service.forget(remote.ticket)
            case messages.Released():
                held = self._models.pop(message.model, None)
                if held is not None:
                    held.close()
            case messages.Snapshot():
                self._report(self, message)
            case messages.Ask():
                self._answer(self, message)
            case messages.Hello():
                self.worker, self.pid = message.worker, message.pid
                self._introduced(self)

    def _submit(self, message: messages.Submit) -> None:
        lengths = [length for _, length, _ in message.images]
        parts = self._arena.read(lengths) if message.inline is None else _cut(message.inline, lengths)
        remote = Remote(message.id, self.channel, self._over)
        if message.model not in self._models:
            # The worker took it in hand before this process was started again.
            remote.set_exception(ServiceError("not_ready", "the engine was started again", retry_after_seconds=1))
            return
        ticket = remote.ticket = Ticket(
            message.model,
            message.top_k,
            message.deadline,
            remote,
            message.places,
            message.source,
            message.priority,
        )
        ticket.listener = remote.put
        images = [(place, data, info) for (place, _, info), data in zip(message.images, parts, strict=True)]
        try:
            self._service.submit(ticket, images, unseen_seconds=message.unseen_seconds)
        except ServiceError as error:
            remote.set_exception(error)
            return
        self._requests[message.id] = remote
        self._promised()

    def _over(self, remote: Remote) -> None:
        """A request was answered, or failed."""
        if self._requests.pop(remote.id, None) is not None and remote.ticket is not None:
            self._service.forget(remote.ticket)

    def _lost(self) -> None:
        """The worker has gone, and with it whoever waited for an answer there."""
        for remote in list(self._requests.values()):
            if remote.ticket is not None:
                self._service.forget(remote.ticket)
        self._requests.clear()
        for held in self._models.values():
            held.close()
        self._models.clear()
        self._arena.close()
        self._gone(self)


def card_of(model: ServedModel) -> messages.Card:
    """What a worker knows of a model."""
    return messages.Card(
        name=model.name,
        version=model.version,
        number=model.number,
        key=model.key,
        labels=list(model.labels),
        num_classes=model.num_classes,
        size=model.size,
        about=model.describe(),
    )


def _cut(data: bytes, lengths: list[int]) -> list[bytes]:
    if len(data) != sum(lengths):
        raise ValueError(f"{len(data)} bytes inline: {sum(lengths)} announced")
    parts, start = [], 0
    for length in lengths:
        parts.append(data[start : start + length])
        start += length
    return parts
