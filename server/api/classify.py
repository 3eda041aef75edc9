"""POST /classify: images in three forms to classes. Plain ASGI: this is the path that must be cheap."""

import asyncio
import json
import time
from typing import NamedTuple

from starlette.types import Receive, Scope, Send

from ...inference.results import SCORE_COST, Predictions
from ..errors import ServiceError, status_of
from ..http.body import read_body
from ..http.body_budget import BudgetLease
from ..http.payload import encoded_images, payload_kind
from ..http.responses import send_whole
from ..repository.model_info import ModelInfo
from ..scheduler.request import Outcome
from ..security.auth import ACCOUNT_KEY, Authenticator
from ..security.key_store import Account
from ..service.params import ClassifyParams, check_scores, read_params
from ..service.service import Service
from ..service.submit import CheckedImage, Requester, ask, check_image, count_outcomes, make_request
from ..telemetry.context import RequestContext, context_of
from .outcomes import outcome_label
from .stream import Stream, wants_stream


class Classify:
    """The endpoint."""

    def __init__(self, service: Service, gate: Authenticator) -> None:
        self._service, self._gate = service, gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        trace, service = context_of(scope), self._service
        service.check_accepting()
        params = read_params(scope["query_string"], trace.headers, service.models, service.settings)
        service.check_time(params.timeout_seconds, params.priority)
        requester, streamed = Requester(trace, receive), wants_stream(trace.headers)
        with service.body_budget.lease() as hold:
            with service.using(params.model):
                try:
                    async with asyncio.timeout(params.timeout_seconds):
                        images = await self._images(params, trace, receive, hold, scope.get(ACCOUNT_KEY))
                        if not streamed:
                            outcomes = await ask(service, params, images, requester)
                            answer = await self._answer(params, outcomes, trace)
                except TimeoutError:
                    milliseconds = round(params.timeout_seconds * 1e3)
                    raise ServiceError("deadline", f"no answer within {milliseconds} ms") from None
                if streamed:
                    await self._stream(params, images, requester, send)
                    return
            del images
            hold.resize(len(answer.body))  # until the client has read it
            headers = [(b"content-type", b"application/json")]
            await send_whole(send, trace, answer.body, headers, status=answer.status)

    async def _images(
        self,
        params: ClassifyParams,
        trace: RequestContext,
        receive: Receive,
        hold: BudgetLease,
        account: Account | None,
    ) -> list[CheckedImage]:
        """The request's images, each past the guard, and the sandbox where it needs that, or with its error."""
        form = payload_kind(trace.headers)
        service, model, limits = self._service, params.model, params.model.limits
        settings = service.settings
        limit = min(limits.max_bytes, settings.max_body_bytes) if form == "raw" else settings.max_body_bytes
        body = await read_body(receive, trace.content_length(), limit, hold)
        trace.end_stage("receive")
        service.metrics.body_bytes[form].observe(len(body))
        content_type = trace.headers.get(b"content-type", b"")
        most = settings.of(model.name).max_images_per_request

        def parse() -> list[CheckedImage]:
            encoded = encoded_images(body, form, content_type, max_images=most)
            check_scores(len(encoded), params.top_k)
            return [check_image(image, model) for image in encoded]

        # The images of other forms are copies: for a moment they are there beside the body, later in its place.
        copies = 0 if form == "raw" else len(body)
        hold.take(copies)
        images = await service.parsers.run(parse, len(body))
        hold.give_back(copies)
        self._gate.charge_images(account, len(images))
        left = trace.started + params.timeout_seconds - time.perf_counter()
        images = await service.sandboxed_images.decode(images, model.spec, hold, left)
        trace.end_stage("parse")
        return images

    async def _stream(
        self, params: ClassifyParams, images: list[CheckedImage], requester: Requester, send: Send
    ) -> None:
        """Answer image by image."""
        service, model, trace = self._service, params.model, requester.context
        trace.asks(model.name, len(images))
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

    async def _answer(self, params: ClassifyParams, outcomes: list[Outcome], trace: RequestContext) -> "_Answer":
        """Predictions and errors in order; the first error's status when nothing succeeded."""
        cost = SCORE_COST * len(outcomes) * params.top_k
        return await self._service.parsers.run(lambda: _write(params.model, outcomes, trace), cost)


class _Answer(NamedTuple):
    status: int
    body: bytes


def _write(model: ModelInfo, outcomes: list[Outcome], trace: RequestContext) -> _Answer:
    several = len(outcomes) > 1
    results = b", ".join(
        model.result_json(outcome, f"image {place}: " if several else "") for place, outcome in enumerate(outcomes)
    )
    body = b'%b%b", "results": [%b]}' % (model.head_json, trace.request_id, results)
    first = outcomes[0]
    if isinstance(first, Predictions) or any(isinstance(outcome, Predictions) for outcome in outcomes):
        return _Answer(200, body)
    trace.code = first.code
    # Whoever looks for the common shape of errors finds it; whoever looks for results finds them.
    error = {"code": first.code, "message": first.message}
    body = b'{"error": %b, %b' % (json.dumps(error, ensure_ascii=False).encode(), body[1:])
    return _Answer(status_of(first.code), body)
