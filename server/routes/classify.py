"""POST /classify: images in three forms to classes. Plain ASGI: this is the path that must be cheap."""

import asyncio
import json
import time

from starlette.types import Receive, Scope, Send

from ..ask import Inspected, ask, count_images, inspect_image, make_ticket
from ..body import Hold, read_body
from ..card import ModelCard
from ..errors import ServiceError, status_of
from ..forms import Form, form_of, images_in
from ..outcome import Outcome, Predictions
from ..question import Question, read_question
from ..security.gate import ACCOUNT_KEY, Gate
from ..service import Service
from ..trace import Trace, trace_of
from ..waiting import source_of
from .outcomes import word_for
from .stream import Stream, wants_stream

# Parsing more than this happens on another thread, so that the event loop goes on.
INLINE_PARSE_BYTES = 1 << 20


class Classify:
    """The endpoint."""

    def __init__(self, service: Service, gate: Gate) -> None:
        self._service, self._gate = service, gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        trace, service = trace_of(scope), self._service
        service.check_accepting()
        question = read_question(scope["query_string"], trace.headers, service.models, service.settings)
        service.check_time(question.timeout_seconds, question.priority)
        source, streamed = source_of(scope), wants_stream(trace.headers)
        with service.using(question.model), service.held.hold() as hold:
            try:
                async with asyncio.timeout(question.timeout_seconds):
                    images = await self._images(question, trace, receive, hold)
                    self._gate.charge_images(scope.get(ACCOUNT_KEY), len(images))
                    if not streamed:
                        outcomes = await ask(service, question, images, trace, source=source, receive=receive)
            except TimeoutError:
                milliseconds = round(question.timeout_seconds * 1e3)
                raise ServiceError("deadline", f"no answer within {milliseconds} ms") from None
            if streamed:
                await self._stream(question, images, trace, receive, send, source)
                return
        await _respond(question.model, outcomes, trace, send)

    async def _images(self, question: Question, trace: Trace, receive: Receive, hold: Hold) -> list[Inspected]:
        """The request's images, each past the guard or with its error."""
        form = form_of(trace.headers)
        settings, limits = self._service.settings, question.model.limits
        limit = min(limits.max_bytes, settings.max_body_bytes) if form == "raw" else settings.max_body_bytes
        body = await read_body(receive, trace.content_length(), limit, hold)
        trace.mark()
        self._service.metrics.body_bytes[form].observe(len(body))
        images = await self._parse(body, form, question.model, trace)
        trace.mark()
        return images

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
        service, model = self._service, question.model
        ticket, waiter, wanted = make_ticket(question, images, trace, source)
        cache = service.cache
        if cache is not None and wanted:
            wanted = await cache.answer(ticket, wanted, trace)
        try:
            if wanted:
                service.submit(ticket, wanted)
        except ServiceError as error:
            service.forget(ticket)
            count_images(service, model, {word_for(error): len(images)})
            raise
        stream = Stream(question, ticket, trace, send)
        try:
            await stream.run(waiter, receive, ticket.deadline - time.perf_counter())
        finally:
            waiter.cancel()
            service.forget(ticket)
            if cache is not None:
                cache.learn(ticket)
            count_images(service, model, stream.counts)

    async def _parse(self, body: bytes, form: Form, model: ModelCard, trace: Trace) -> list[Inspected]:
        content_type = trace.headers.get(b"content-type", b"")
        most = self._service.settings.of(model.name).max_images_per_request

        def parse() -> list[Inspected]:
            return [inspect_image(image, model) for image in images_in(body, form, content_type, max_images=most)]

        if form == "raw" or len(body) <= INLINE_PARSE_BYTES:
            return parse()
        return await asyncio.to_thread(parse)


async def _respond(model: ModelCard, outcomes: list[Outcome], trace: Trace, send: Send) -> None:
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
