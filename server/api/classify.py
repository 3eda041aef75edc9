"""Answers POST /classify, which turns images into classes. It is plain ASGI because it must be cheap."""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import NamedTuple

from starlette.types import Receive, Scope, Send

from ...inference.results import SCORE_COST, Predictions
from ..errors import ServiceError, error_headers, status_of
from ..http.body import read_body
from ..http.body_budget import BudgetLease
from ..http.payload import encoded_images, payload_kind
from ..http.responses import send_whole
from ..repository.served_model import ServedModel
from ..scheduler.request import Outcome, outcome_label
from ..security.auth import ACCOUNT_KEY, Authenticator
from ..service.params import ClassifyParams, check_scores, read_params
from ..service.service import Service
from ..service.submit import CheckedImage, Requester, ask, check_image, count_outcomes, make_request
from ..telemetry.context import RequestContext, context_of
from .stream import Stream, wants_stream


class Classify:
    """The endpoint of one service."""

    def __init__(self, service: Service, auth: Authenticator) -> None:
        self._service, self._auth = service, auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context, service = context_of(scope), self._service
        service.check_accepting()
        params = read_params(scope["query_string"], context.headers, service.models, service.settings)
        service.check_time(params.timeout_seconds, params.priority)
        requester, streamed = Requester(context, receive), wants_stream(context.headers)
        with service.body_budget.lease() as lease:
            with service.lifecycle.using(params.model):
                try:
                    async with asyncio.timeout(params.timeout_seconds):
                        images = await self._images(params, scope, receive, lease, requester)
                        if not streamed:
                            outcomes = await ask(service, params, images, requester)
                            answer = await self._answer(params, outcomes, context)
                except TimeoutError:
                    milliseconds = round(params.timeout_seconds * 1e3)
                    raise ServiceError("deadline", f"no answer within {milliseconds} ms") from None
                if streamed:
                    await self._stream(params, images, requester, send)
                    return
            del images
            lease.resize(len(answer.body))  # until the client has read it
            headers = [(b"content-type", b"application/json"), *answer.headers]
            await send_whole(send, context, answer.body, headers, status=answer.status)

    async def _images(
        self, params: ClassifyParams, scope: Scope, receive: Receive, lease: BudgetLease, requester: Requester
    ) -> list[CheckedImage]:
        """Read the images, each checked by its header and decoded in the sandbox where it needs that, or an error."""
        context = context_of(scope)
        form = payload_kind(context.headers)
        service, model, limits = self._service, params.model, params.model.limits
        settings = service.settings
        limit = min(limits.max_bytes, settings.max_body_bytes) if form == "raw" else settings.max_body_bytes
        body = await read_body(receive, context.content_length(), limit, lease)
        context.end_stage("receive")
        service.metrics.body_bytes[form].observe(len(body))
        content_type = context.headers.get(b"content-type", b"")
        most = settings.of(model.name).max_images_per_request

        def parse() -> list[CheckedImage]:
            encoded = encoded_images(body, form, content_type, max_images=most)
            check_scores(len(encoded), params.top_k)
            return [check_image(image, model) for image in encoded]

        # In forms other than raw the images are copies: for a moment they exist beside the body, then instead of it.
        copies = 0 if form == "raw" else len(body)
        lease.take(copies)
        images = await service.parsers.run(parse, len(body))
        lease.give_back(copies)
        self._auth.charge_images(scope.get(ACCOUNT_KEY), len(images))
        left = context.started + params.timeout_seconds - time.perf_counter()
        images = await service.sandboxed_images.decode(images, model.spec, lease, requester, left)
        context.end_stage("parse")
        return images

    async def _stream(
        self, params: ClassifyParams, images: list[CheckedImage], requester: Requester, send: Send
    ) -> None:
        """Send each image's result as soon as it is there."""
        service, model, context = self._service, params.model, requester.context
        context.asks(model.name, len(images))
        request, waiter, wanted = make_request(params, images, requester)
        try:
            if wanted:
                service.submit(request, wanted)
        except ServiceError as error:
            service.finish(request)
            count_outcomes(service, model, {outcome_label(error): len(images)})
            raise
        stream = Stream(params, request, requester, send, service.parsers)
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
