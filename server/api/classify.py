"""Answers POST /classify, which turns images into classes. It is plain ASGI because it must be cheap."""

import json
import time
from collections.abc import Sequence
from functools import partial

from starlette.types import Receive, Scope, Send

from ...inference.results import TopClasses
from ..errors import ServiceError, error_headers, status_of
from ..http.body import read_body
from ..http.body_budget import BudgetLease
from ..http.parameters import PARAMETERS, joined, read_query
from ..http.payload import Payload, PayloadFormat, payload_kind, read_payload
from ..http.responses import JSON_TYPE, HttpAnswer, send_whole
from ..repository.served_model import ServedModel
from ..scheduler.request import Outcome
from ..security.auth import ACCOUNT_KEY, Authenticator
from ..service.caller import Caller, CheckedImage, check_image
from ..service.inference_handler import ChangeParams, Query
from ..service.params import ClassifyParams, check_scores, params_for, read_params
from ..service.service import Service
from ..telemetry.context import RequestContext, context_of
from .result import result_json
from .stream import CONTENT_TYPE as NDJSON_TYPE
from .stream import Stream

_ReadQuery = Query[HttpAnswer | None]  # made once, not with each request


class Classify:
    """The endpoint of one service. Those of other servers' protocols are kinds of it, which read and write otherwise.

    `streams`: answers in lines where that is accepted. `whole`: a request fails with its first bad image. `max_images`:
    of a request, where it is not the setting. `parameters`: that a request may have. `route`: its path, a label of
    metrics.
    """

    streams, whole = True, False
    parameters: Sequence[str] = PARAMETERS
    classes = True  # whether answers have them
    max_images: int | None = None

    def __init__(self, service: Service, auth: Authenticator, route: str) -> None:
        self._service, self._auth, self.route = service, auth, route
        self._body_bytes = service.metrics.body_bytes(route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context, service = context_of(scope), self._service
        service.check_accepting()
        form, query = self.form(context), self.asked(scope, context)
        # A form or JSON may name the model as well; until it is read, the time is that of the default one.
        early = form in ("raw", "array") or "model" in query
        params = self.params(query, context) if early else self._params_of_default(context)
        service.dispatcher.check_time(params.timeout_seconds, params.priority)
        charge = partial(self._auth.charge_images, scope.get(ACCOUNT_KEY))
        with service.body_budget.lease() as lease:
            caller = Caller(context, receive, lease, charge)
            streams = self.streams and accepts(context.headers, NDJSON_TYPE)
            stream = partial(self._stream, caller, send) if streams else None

            async def read(change: ChangeParams) -> _ReadQuery:
                payload, asked = await self._payload(form, params.model, receive, caller), params
                if payload.asked or not early:
                    asked = self.params(joined(query, payload.asked), context)
                    change(asked)
                return self.query(asked, context, await self._images(asked, payload, lease))

            answer = await service.handler.answer(params, caller, read, stream)
            if answer is not None:
                await send_whole(send, context, lease, answer)

    def form(self, context: RequestContext) -> PayloadFormat:
        """What the body is. Raises ServiceError `unsupported_format`."""
        return payload_kind(context.headers)

    def asked(self, scope: Scope, context: RequestContext) -> dict[str, str]:
        """The parameters outside the body. Raises ServiceError `bad_request`."""
        return read_query(scope["query_string"], self.parameters)

    def read(self, body: bytes, form: PayloadFormat, content_type: bytes) -> Payload:
        """Find the images and parameters of a body. Raises ServiceError `bad_request`, `empty`."""
        return read_payload(body, form, content_type, self.parameters)

    def params(self, asked: dict[str, str], context: RequestContext) -> ClassifyParams:
        """What the parameters and headers ask for. Raises ServiceError as `read_params`."""
        service = self._service
        return read_params(
            asked, context.headers, service.models, service.heads, service.settings, classes=self.classes
        )

    def _params_of_default(self, context: RequestContext) -> ClassifyParams:
        return params_for(self._service.models.find(), context.headers, self._service.settings)

    async def _payload(self, form: PayloadFormat, model: ServedModel, receive: Receive, caller: Caller) -> Payload:
        """Read the body and find its parts."""
        service, context = self._service, caller.context
        most = service.settings.max_body_bytes
        limit = min(model.limits.max_bytes, most) if form == "raw" else most
        body = await read_body(receive, context.content_length(), limit, caller.lease)
        context.end_stage("receive")
        self._body_bytes[form].observe(len(body))
        content_type, size = context.headers.get(b"content-type", b""), 0 if form in ("raw", "array") else len(body)
        return await service.parsers.run(lambda: self.read(body, form, content_type), size)

    async def _images(self, params: ClassifyParams, payload: Payload, lease: BudgetLease) -> list[CheckedImage]:
        """List the images, each checked by its header, or an error."""
        service, model = self._service, params.model
        most = self.max_images or service.settings.of(model.name).max_images_per_request
        size = len(payload.body)

        def parse() -> list[CheckedImage]:
            encoded = payload.images(most)
            check_scores(len(encoded), params.values)
            return [check_image(image, model) for image in encoded]

        # In forms other than raw the images are copies: for a moment they exist beside the body, then instead of it.
        copies = 0 if payload.form == "raw" else size
        lease.take(copies)
        images = await service.parsers.run(parse, size)
        lease.give_back(copies)
        return images

    async def _stream(self, caller: Caller, send: Send, params: ClassifyParams, images: list[CheckedImage]) -> None:
        """Send each image's result as soon as it is there."""
        dispatcher = self._service.dispatcher
        stream = Stream(params, len(images), caller, send, self._service.parsers)
        request, waiter = dispatcher.submit(params, images, caller, stream.put)
        try:
            await stream.run(waiter, request.deadline - time.perf_counter())
        finally:
            waiter.cancel()
            dispatcher.finish(request)
            dispatcher.count(params, stream.counts)

    def query(self, params: ClassifyParams, context: RequestContext, images: list[CheckedImage]) -> _ReadQuery:
        """What the body brought, and how it is answered."""
        return Query(images, partial(self.write, params, context), self.whole)

    def opening(self, params: ClassifyParams) -> bytes:
        """The beginning of an answer."""
        return params.opening_json

    def write(self, params: ClassifyParams, context: RequestContext, outcomes: list[Outcome]) -> HttpAnswer:
        """Write predictions and errors in order; where no image succeeded, the first one's status counts."""
        several = len(outcomes) > 1
        results = b", ".join(
            result_json(params, outcome, f"image {index}: " if several else "")
            for index, outcome in enumerate(outcomes)
        )
        body = b'%b%b", "results": [%b]}' % (self.opening(params), context.request_id, results)
        first = outcomes[0]
        if isinstance(first, TopClasses) or any(isinstance(outcome, TopClasses) for outcome in outcomes):
            return HttpAnswer(body)
        context.code = first.code
        # The body has the common shape of errors and the results too: a client finds whichever it looks for.
        error = {"code": first.code, "message": first.message}
        body = b'{"error": %b, %b' % (json.dumps(error, ensure_ascii=False).encode(), body[1:])
        headers = error_headers(first) if isinstance(first, ServiceError) else ()
        return HttpAnswer(body, (JSON_TYPE, *headers), status_of(first.code))


def accepts(headers: dict[bytes, bytes], content_type: bytes) -> bool:
    """Tell whether a request names a type of answer."""
    kinds = headers.get(b"accept", b"").split(b",")
    return any(kind.partition(b";")[0].strip().lower() == content_type for kind in kinds)
