"""POST /classify: images in three forms to classes. Plain ASGI: this is the path that must be cheap."""

import asyncio
import json
import time
from collections import Counter

from starlette.types import Receive, Scope, Send

from ...loaders.errors import InputError
from ...loaders.guard import inspect
from ...loaders.info import ImageInfo
from ..body import Hold, read_body
from ..errors import ServiceError, status_of
from ..forms import Encoded, Form, form_of, images_in
from ..outcome import Outcome, Predictions
from ..question import Question, read_question
from ..served import ServedModel
from ..service import Service
from ..ticket import Ticket
from ..trace import Trace, trace_of
from ..waiting import source_of, watched
from .outcomes import word_for
from .stream import Stream, wants_stream

# Parsing more than this happens on another thread, so that the event loop goes on.
INLINE_PARSE_BYTES = 1 << 20

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
        with service.rollout.using(question.model), service.held.hold() as hold:
            try:
                async with asyncio.timeout(question.timeout_seconds):
                    images = await self._images(question, trace, receive, hold)
                    if not wants_stream(trace.headers):
                        outcomes = await self._outcomes(question, images, trace, receive, source_of(scope))
            except TimeoutError:
                milliseconds = round(question.timeout_seconds * 1e3)
                raise ServiceError("deadline", f"no answer within {milliseconds} ms") from None
            if wants_stream(trace.headers):
                await self._stream(question, images, trace, receive, send, source_of(scope))
                return
        await _respond(question.model, outcomes, trace, send)

    async def _images(self, question: Question, trace: Trace, receive: Receive, hold: Hold) -> list[Inspected]:
        """The request's images, each past the guard or with its error."""
        form = form_of(trace.headers)
        settings, limits = self._service.settings, question.model.limits
        # An array may hold several images, each of which has its own limit.
        one = form == "raw" and not trace.headers.get(b"content-type", b"").strip().lower().startswith(_ARRAY)
        limit = min(limits.max_bytes, settings.max_body_bytes) if one else settings.max_body_bytes
        body = await read_body(receive, trace.content_length(), limit, hold)
        trace.mark()
        self._service.metrics.body_bytes[form].observe(len(body))
        images = await self._parse(body, form, question.model, trace)
        trace.mark()
        return images

    async def _outcomes(
        self, question: Question, images: list[Inspected], trace: Trace, receive: Receive, source: str | None
    ) -> list[Outcome]:
        """What became of each image."""
        try:
            outcomes = await self._ask_engine(question, images, trace, receive, source)
        except BaseException as error:
            self._count(question.model, {word_for(error): len(images)})
            raise
        self._count(question.model, Counter(map(word_for, outcomes)))
        return outcomes

    async def _stream(
        self,
        question: Question,
        images: list[Inspected],
        trace: Trace,
        receive: Receive,
        send: Send,
        source: str | None,
    ) -> None:
        """Answer image by image."""
        ticket, waiter, wanted = _ticket(question, images, trace, source)
        if wanted:
            self._submit(question, ticket, wanted)
        stream = Stream(self._service, question, ticket, trace, send)
        try:
            await stream.run(waiter, receive, ticket.deadline - time.perf_counter())
        finally:
            waiter.cancel()
            self._service.forget(ticket)
            self._count(question.model, stream.counts)

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
        ticket, waiter, wanted = _ticket(question, images, trace, source)
        if wanted:
            self._service.submit(ticket, wanted)
            try:
                async with watched(waiter, receive):
                    await waiter
            finally:
                self._service.forget(ticket)
            self._mark_engine(question.model, ticket, trace)
        return [outcome for outcome in ticket.outcomes if outcome is not None]

    def _submit(self, question: Question, ticket: Ticket, wanted: list[tuple[int, bytes, ImageInfo]]) -> None:
        try:
            self._service.submit(ticket, wanted)
        except ServiceError as error:
            self._count(question.model, {word_for(error): len(ticket.outcomes)})
            raise

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


def _ticket(
    question: Question, images: list[Inspected], trace: Trace, source: str | None
) -> tuple[Ticket, "asyncio.Future[None]", list[tuple[int, bytes, ImageInfo]]]:
    """The request as the queue sees it, what wakes it, and the images that passed the guard."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    deadline = trace.started + question.timeout_seconds
    ticket = Ticket(question.model.key, question.top_k, deadline, waiter, len(images), source, question.priority)
    wanted: list[tuple[int, bytes, ImageInfo]] = []
    for place, image in enumerate(images):
        if isinstance(image, tuple):
            wanted.append((place, *image))
        else:
            ticket.outcomes[place] = image
    return ticket, waiter, wanted


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
