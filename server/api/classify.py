"""Answers POST /classify, which turns images into classes. It is plain ASGI because it must be cheap."""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from starlette.types import Receive, Scope, Send

from ...inference.results import SCORE_BYTES, SCORE_COST, Predictions
from ..errors import ServiceError, error_headers, status_of
from ..http.body import read_body
from ..http.body_budget import BudgetLease
from ..http.parameters import joined, read_query
from ..http.payload import Form, Payload, payload_kind, read_payload
from ..http.responses import send_whole
from ..repository.served_model import ServedModel
from ..scheduler.request import Outcome, outcome_label
from ..security.auth import ACCOUNT_KEY, Authenticator
from ..service.caller import Caller, CheckedImage, check_image
from ..service.params import ClassifyParams, check_scores, params_for, read_params
from ..service.service import Service
from ..service.submit import classify, count_outcomes, make_request
from ..telemetry.context import RequestContext, context_of
from .stream import Stream, wants_stream


class Classify:
    """The endpoint of one service."""

    def __init__(self, service: Service, auth: Authenticator) -> None:
        self._service, self._auth = service, auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context, service = context_of(scope), self._service
        service.check_accepting()
        form, query = payload_kind(context.headers), read_query(scope["query_string"])
        # A form or JSON may name the model as well; until it is read, the time is that of the default one.
        early = form in ("raw", "array") or "model" in query
        params = self._params(query, context) if early else self._params_of_default(context)
        service.check_time(params.timeout_seconds, params.priority)
        caller, streamed = Caller(context, receive), wants_stream(context.headers)
        with service.body_budget.lease() as lease:
            with ExitStack() as models:
                models.enter_context(service.lifecycle.using(params.model))
                try:
                    async with asyncio.timeout(params.timeout_seconds) as timeout:
                        payload = await self._payload(form, params.model, context, receive, lease)
                        if payload.asked or not early:
                            params = self._params(joined(query, payload.asked), context)
                            models.enter_context(service.lifecycle.using(params.model))
                            timeout.reschedule(asyncio.get_running_loop().time() + _left(params, context))
                        images = await self._images(params, payload, scope, lease)
                        del payload  # with the body, of which the images may be copies
                        left, spec = _left(params, context), params.model.spec
                        images = await service.sandboxed_images.decode(images, spec, lease, caller, left)
                        context.end_stage("parse")
                        if not streamed:
                            outcomes = await classify(service, params, images, caller)
                            answer = await self._answer(params, outcomes, context)
                except TimeoutError:
                    milliseconds = round(params.timeout_seconds * 1e3)
                    raise ServiceError("deadline", f"no answer within {milliseconds} ms") from None
                if streamed:
                    await self._stream(params, images, caller, send)
                    return
            del images
            lease.resize(len(answer.body))  # until the client has read it
            headers = [(b"content-type", b"application/json"), *answer.headers]
            await send_whole(send, context, answer.body, headers, status=answer.status)

    def _params(self, asked: dict[str, str], context: RequestContext) -> ClassifyParams:
        return read_params(asked, context.headers, self._service.models, self._service.settings)

    def _params_of_default(self, context: RequestContext) -> ClassifyParams:
        return params_for(self._service.models.find(), context.headers, self._service.settings)

    async def _payload(
        self, form: Form, model: ServedModel, context: RequestContext, receive: Receive, lease: BudgetLease
    ) -> Payload:
        """Read the body and find its parts."""
        service = self._service
        most = service.settings.max_body_bytes
        limit = min(model.limits.max_bytes, most) if form == "raw" else most
        body = await read_body(receive, context.content_length(), limit, lease)
        context.end_stage("receive")
        service.metrics.body_bytes[form].observe(len(body))
        content_type, size = context.headers.get(b"content-type", b""), 0 if form in ("raw", "array") else len(body)
        return await service.parsers.run(lambda: read_payload(body, form, content_type), size)

    async def _images(
        self, params: ClassifyParams, payload: Payload, scope: Scope, lease: BudgetLease
    ) -> list[CheckedImage]:
        """List the images, each checked by its header, or an error."""
        service, model = self._service, params.model
        most, size = service.settings.of(model.name).max_images_per_request, len(payload.body)

        def parse() -> list[CheckedImage]:
            encoded = payload.images(most)
            check_scores(len(encoded), params.top_k)
            return [check_image(image, model) for image in encoded]

        # In forms other than raw the images are copies: for a moment they exist beside the body, then instead of it.
        copies = 0 if payload.form == "raw" else size
        lease.take(copies)
        images = await service.parsers.run(parse, size)
        lease.give_back(copies)
        self._auth.charge_images(scope.get(ACCOUNT_KEY), len(images))
        lease.take_for_answer(SCORE_BYTES * len(images) * params.top_k)
        return images

    async def _stream(self, params: ClassifyParams, images: list[CheckedImage], caller: Caller, send: Send) -> None:
        """Send each image's result as soon as it is there."""
        service, model, context = self._service, params.model, caller.context
        context.note_request(model.name, len(images))
        request, waiter, checked = make_request(params, images, caller)
        try:
            if checked:
                service.submit(request, checked)
        except ServiceError as error:
            service.finish(request)
            count_outcomes(service, model, {outcome_label(error): len(images)})
            raise
        stream = Stream(params, request, caller, send, service.parsers)
        try:
            await stream.run(waiter, request.deadline - time.perf_counter())
        finally:
            waiter.cancel()
            service.finish(request)
            count_outcomes(service, model, stream.counts)

    async def _answer(self, params: ClassifyParams, outcomes: list[Outcome], context: RequestContext) -> "_Answer":
        """Write predictions and errors in order; where no image succeeded, the first one's status counts."""
        cost = SCORE_COST * len(outcomes) * params.top_k
        return await self._service.parsers.run(lambda: _write(params.model, outcomes, context), cost)


def _left(params: ClassifyParams, context: RequestContext) -> float:
    """Seconds until the answer is due."""
    return context.started + params.timeout_seconds - time.perf_counter()


class _Answer(NamedTuple):
    status: int
    body: bytes
    headers: Sequence[tuple[bytes, bytes]] = ()


def _write(model: ServedModel, outcomes: list[Outcome], context: RequestContext) -> _Answer:
    several = len(outcomes) > 1
    results = b", ".join(
        model.result_json(outcome, f"image {index}: " if several else "") for index, outcome in enumerate(outcomes)
    )
    body = b'%b%b", "results": [%b]}' % (model.head_json, context.request_id, results)
    first = outcomes[0]
    if isinstance(first, Predictions) or any(isinstance(outcome, Predictions) for outcome in outcomes):
        return _Answer(200, body)
    context.code = first.code
    # The body has the common shape of errors and the results too: a client finds whichever it looks for.
    error = {"code": first.code, "message": first.message}
    body = b'{"error": %b, %b' % (json.dumps(error, ensure_ascii=False).encode(), body[1:])
    return _Answer(status_of(first.code), body, error_headers(first) if isinstance(first, ServiceError) else ())
