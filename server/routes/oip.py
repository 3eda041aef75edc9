"""The REST half of the Open Inference Protocol: /v2 and what is below."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ..body import Hold, read_body
from ..card import ModelCard
from ..errors import ServiceError
from ..forms import form_of
from ..oip import describe
from ..oip.infer import Prepared, before_deadline, find_version, infer, prepare, question_of
from ..oip.outputs import output_tensors
from ..oip.rest_answer import infer_answer
from ..oip.rest_request import LENGTH_HEADER, json_length, parsed_bytes, read_infer_request
from ..responses import error_response
from ..security.gate import ACCOUNT_KEY, Gate
from ..service import Service
from ..trace import Trace, trace_of
from ..waiting import source_of

# More than this is parsed on another thread, so that the event loop goes on.
INLINE_BYTES = 1 << 20

# A parsed document may take so many times the memory of the largest body.
PARSED_FACTOR = 2

MAX_QUESTION_BYTES = 1 << 16

_MODEL = "/v2/models/{name}"
_VERSION = "/v2/models/{name}/versions/{version}"

Answer = Callable[[Request], Awaitable[Response]]


def oip_routes(service: Service, gate: Gate) -> list[Route]:
    """The routes of one service."""
    routes = [
        Route("/v2", _said(describe.server_metadata)),
        Route("/v2/health/live", _probe("live", service.check_alive)),
        Route("/v2/health/ready", _probe("ready", service.check_ready)),
        Route("/v2/repository/index", _index(service), methods=["POST"]),
        Route("/v2/models/stats", _stats(service)),
    ]
    for path in (_MODEL, _VERSION):
        routes += [
            Route(
                path, _about(service, lambda model: describe.model_metadata(model, service.models.versions(model.name)))
            ),
            Route(f"{path}/ready", _model_probe(service)),
            Route(f"{path}/config", _about(service, lambda model: describe.model_config(service.settings, model))),
            Route(f"{path}/stats", _stats(service)),
            Route(f"{path}/infer", Infer(service, gate), methods=["POST"]),
        ]
    return routes


class Infer:
    """POST .../infer."""

    def __init__(self, service: Service, gate: Gate) -> None:
        self._service = service
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        trace, service = trace_of(scope), self._service
        service.check_accepting()
        model = _model_of(service, scope)
        question = question_of(service, model, trace)
        said = b"x-request-timeout-ms" in trace.headers
        async with before_deadline(question, trace, said=said) as clock:
            with service.using(model), service.held.hold() as hold:
                prepared = await self._read(model, trace, receive, hold)
                outcomes = await infer(
                    service,
                    question,
                    prepared,
                    clock,
                    trace,
                    charge=lambda images: self._gate.charge_images(scope.get(ACCOUNT_KEY), images),
                    source=source_of(scope),
                    receive=receive,
                )

            def write() -> tuple[bytes, list[tuple[bytes, bytes]]]:
                return infer_answer(model, prepared.id, output_tensors(model, outcomes, prepared.options))

            body, headers = write() if prepared.is_small else await asyncio.to_thread(write)
        headers += [(b"content-length", b"%d" % len(body)), (b"server-timing", trace.server_timing())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _read(self, model: ModelCard, trace: Trace, receive: Receive, hold: Hold) -> Prepared:
        """The body, parsed, each image's header looked at."""
        settings = self._service.settings
        if form_of(trace.headers) == "multipart":
            raise ServiceError("unsupported_format", "multipart/form-data is not accepted: use application/json")
        body = await read_body(receive, trace.content_length(), settings.max_body_bytes, hold)
        trace.mark()
        length = json_length(body, trace.headers.get(LENGTH_HEADER))
        large = len(body) > INLINE_BYTES
        cost = await asyncio.to_thread(parsed_bytes, body, length) if large else parsed_bytes(body, length)
        if cost > PARSED_FACTOR * settings.max_body_bytes:
            limit = PARSED_FACTOR * settings.max_body_bytes
            raise ServiceError("too_large", f"the JSON takes {cost} bytes of memory: limit {limit}; send it in binary")
        hold.take(cost)

        def parse() -> Prepared:
            return prepare(read_infer_request(body, length), model, settings)

        prepared = await asyncio.to_thread(parse) if large else parse()
        trace.mark()
        return prepared


def _model_of(service: Service, scope: Scope) -> ModelCard:
    parameters = scope["path_params"]
    return find_version(service, parameters["name"], parameters.get("version", ""))


def _said(describe_it: Callable[[], Any]) -> Answer:
    async def answer(request: Request) -> Response:
        return JSONResponse(describe_it())

    return answer


def _about(service: Service, describe_it: Callable[[ModelCard], Any]) -> Answer:
    async def answer(request: Request) -> Response:
        return JSONResponse(describe_it(_model_of(service, request.scope)))

    return answer


def _probe(word: str, check: Callable[[], None]) -> Answer:
    """A refused probe is no refused request and is not counted as one."""

    async def answer(request: Request) -> Response:
        try:
            check()
        except ServiceError as error:
            return error_response(request, error, status=503)
        return JSONResponse({word: True})

    return answer


def _model_probe(service: Service) -> Answer:
    async def answer(request: Request) -> Response:
        try:
            model = _model_of(service, request.scope)
            service.check_ready()
        except ServiceError as error:
            return error_response(request, error)
        return JSONResponse({"name": model.name, "ready": True})

    return answer


def _stats(service: Service) -> Answer:
    async def answer(request: Request) -> Response:
        named = "name" in request.path_params
        models = [_model_of(service, request.scope)] if named else list(service.models.values())
        return JSONResponse({"model_stats": describe.statistics(models, await service.statistics())})

    return answer


def _index(service: Service) -> Answer:
    async def answer(request: Request) -> Response:
        with service.held.hold() as hold:
            declared = trace_of(request.scope).content_length()
            body = await read_body(request.receive, declared, MAX_QUESTION_BYTES, hold)
        try:
            document = from_json(body) if body else {}
        except ValueError as error:
            raise ServiceError("bad_request", f"the body is not JSON: {error}") from None
        ready = document.get("ready", False) if isinstance(document, dict) else None
        if not isinstance(ready, bool):
            raise ServiceError("bad_request", 'the body must be {} or {"ready": true}')
        return JSONResponse(describe.repository_index(service, ready_only=ready))

    return answer
