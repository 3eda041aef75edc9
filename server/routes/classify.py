"""POST /classify: images in three forms to classes. Plain ASGI: this is the path that must be cheap."""

import asyncio
import json
from collections import Counter

from starlette.types import Receive, Scope, Send

from ...loaders.errors import InputError
from ...loaders.guard import inspect
from ...loaders.info import ImageInfo
from ..batcher import Ticket
from ..body import Hold, read_body
from ..errors import ClientGone, ServiceError, status_of
from ..forms import Encoded, Form, form_of, images_in
from ..outcome import Outcome, Predictions
from ..question import Question, read_question
from ..served import ServedModel
from ..service import Service
from ..trace import Trace, trace_of

# Parsing more than this happens on another thread, so that the event loop goes on.
INLINE_PARSE_BYTES = 1 << 20

# A client that leaves sooner than this is noticed no earlier: its answer is nearly there, and watching costs a task.
WATCH_AFTER_SECONDS = 0.5

_ARRAY = b"application/x-npy"

Inspected = tuple[bytes, ImageInfo] | InputError | ServiceError


class Classify:
    """The endpoint."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        trace, service = trace_of(scope), self._service
        service.check_accepting()
        question = read_question(scope["query_string"], trace.headers, service.models, service.settings)
        try:
            async with asyncio.timeout(question.timeout_seconds):
                with service.held.hold() as hold:
                    outcomes = await self._outcomes(question, trace, receive, hold, source_of(scope))
        except TimeoutError:
            milliseconds = round(question.timeout_seconds * 1e3)
            raise ServiceError("deadline", f"no answer within {milliseconds} ms") from None
        await _respond(question.model, outcomes, trace, send)

    async def _outcomes(
        self, question: Question, trace: Trace, receive: Receive, hold: Hold, source: str | None
    ) -> list[Outcome]:
        """What became of each image."""
        form = form_of(trace.headers)
        settings, limits = self._service.settings, question.model.limits
        # An array may hold several images, each of which has its own limit.
        one = form == "raw" and not trace.headers.get(b"content-type", b"").strip().lower().startswith(_ARRAY)
        limit = min(limits.max_bytes, settings.max_body_bytes) if one else settings.max_body_bytes
        body = await read_body(receive, trace.content_length(), limit, hold)
        trace.mark()
        self._service.metrics.body_bytes[form].observe(len(body))
        images = await self._parse(body, form, question.model, trace)
        del body
        trace.mark()
        try:
            outcomes = await self._ask_engine(question, images, trace, receive, source)
        except BaseException as error:
            self._count(question.model, {_outcome_of(error): len(images)})
            raise
        self._count(question.model, Counter(map(_outcome_of, outcomes)))
        return outcomes

    async def _parse(self, body: bytes, form: Form, model: ServedModel, trace: Trace) -> list[Inspected]:
        content_type = trace.headers.get(b"content-type", b"")
        most = self._service.settings.max_images_per_request

        def parse() -> list[Inspected]:
            return [_inspect(image, model) for image in images_in(body, form, content_type, max_images=most)]

        if len(body) <= INLINE_PARSE_BYTES or (form == "raw" and len(body) <= model.limits.max_bytes):
            return parse()
        return await asyncio.to_thread(parse)

    async def _ask_engine(
        self, question: Question, images: list[Inspected], trace: Trace, receive: Receive, source: str | None
    ) -> list[Outcome]:
        """Queue the images that passed the guard and wait for the last of them."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        deadline = trace.started + question.timeout_seconds
        ticket = Ticket(question.model.name, question.top_k, deadline, waiter, len(images), source)
        wanted: list[tuple[int, bytes, ImageInfo]] = []
        for place, image in enumerate(images):
            if isinstance(image, tuple):
                wanted.append((place, *image))
            else:
                ticket.outcomes[place] = image
        if wanted:
            self._service.submit(ticket, wanted)
            try:
                await _wait(waiter, receive)
            finally:
                self._service.forget(ticket)
            self._mark_engine(question.model, ticket, trace)
        return [outcome for outcome in ticket.outcomes if outcome is not None]

    def _mark_engine(self, model: ServedModel, ticket: Ticket, trace: Trace) -> None:
        """The stages in the engine: of the batch that completed the request; waiting for others is queue."""
        result = ticket.last
        if result is not None:
            trace.ends += (result.started, result.decoded, result.launched, result.forwarded, result.finished)
            trace.mark()
            trace.model = self._service.metrics.model(model.name)

    def _count(self, model: ServedModel, outcomes: dict[str, int]) -> None:
        images = self._service.metrics.model(model.name).images
        for outcome, count in outcomes.items():
            images[outcome].inc(count)


def source_of(scope: Scope) -> str | None:
    """The address a request came from; None over a socket that has none."""
    client = scope.get("client")
    return client[0] if client else None


async def _wait(waiter: "asyncio.Future[None]", receive: Receive) -> None:
    """Wait for the answer; if it is not there at once, also watch for the client to leave."""
    loop = asyncio.get_running_loop()
    watchers: list[asyncio.Task[None]] = []
    timer = loop.call_later(WATCH_AFTER_SECONDS, lambda: watchers.append(loop.create_task(_watch(waiter, receive))))
    try:
        await waiter
    finally:
        timer.cancel()
        for watcher in watchers:
            watcher.cancel()


async def _watch(waiter: "asyncio.Future[None]", receive: Receive) -> None:
    """Give the waiter up as soon as the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        continue
    if not waiter.done():
        waiter.set_exception(ClientGone("wait"))


def _inspect(image: Encoded, model: ServedModel) -> Inspected:
    """The header guard, before anything is queued."""
    if isinstance(image, ServiceError):
        return image
    try:
        return image, inspect(image, model.limits)
    except InputError as error:
        return error


async def _respond(model: ServedModel, outcomes: list[Outcome], trace: Trace, send: Send) -> None:
    """Predictions and errors in order; the first error's status when nothing succeeded."""
    several = len(outcomes) > 1
    results = b", ".join(
        model.result_json(outcome, f"image {place}: " if several else "") for place, outcome in enumerate(outcomes)
    )
    body = b'%b%b", "results": [%b]}' % (model.head_json, trace.request_id, results)
    status = 200
    first = outcomes[0]
    if not isinstance(first, Predictions) and not any(isinstance(o, Predictions) for o in outcomes):
        status, trace.code = status_of(first.code), first.code
        # Whoever looks for the common shape of errors finds it; whoever looks for results finds them.
        error = {"code": first.code, "message": first.message}
        body = b'{"error": %b, %b' % (json.dumps(error, ensure_ascii=False).encode(), body[1:])
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"server-timing", trace.server_timing()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _outcome_of(outcome: object) -> str:
    """The metric's word for how an image, or the request it was in, ended."""
    if isinstance(outcome, Predictions):
        return "ok"
    if isinstance(outcome, ClientGone):
        return "cancelled"
    if isinstance(outcome, TimeoutError | asyncio.CancelledError):
        return "expired"
    code = getattr(outcome, "code", "internal")
    return {"internal": "error", "overloaded": "rejected", "draining": "rejected", "deadline": "expired"}.get(
        code, "invalid"
    )
