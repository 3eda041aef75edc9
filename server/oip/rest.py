"""The REST half of the Open Inference Protocol: /v2 and what is below."""

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ..errors import ServiceError
from ..http.body import read_body
from ..http.body_budget import BudgetLease
from ..http.client_json import decoded
from ..http.payload import payload_kind
from ..http.responses import error_response, send_whole
from ..repository.model_info import ModelInfo
from ..security.auth import ACCOUNT_KEY, Authenticator
from ..service.service import Service
from ..service.submit import Requester
from ..telemetry.context import RequestContext, context_of
from . import metadata as describe
from .images import decoded_bytes
from .infer import Prepared, before_deadline, find_version, infer, prepare, question_of
from .outputs import output_tensors
from .rest_request import LENGTH_HEADER, json_length, read_infer_request
from .rest_response import infer_answer

# What images take beside the body that they came in, of the largest body.
DECODED_FACTOR = 2

MAX_QUESTION_BYTES = 1 << 16

_MODEL = "/v2/models/{name}"
_VERSION = "/v2/models/{name}/versions/{version}"

Answer = Callable[[Request], Awaitable[Response]]


class _IndexQuestion(Struct):
    ready: bool = False


def oip_routes(service: Service, gate: Authenticator) -> list[Route]:
    """The routes of one service."""
    routes = [
        *(Route(path, _said(describe.server_metadata)) for path in ("/v2", "/v2/")),  # the latter is the document's own
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

    def __init__(self, service: Service, gate: Authenticator) -> None:
        self._service = service
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        trace, service = context_of(scope), self._service
        service.check_accepting()
        model = _model_of(service, scope)
        params = question_of(service, model, trace)
        said = b"x-request-timeout-ms" in trace.headers
        with service.body_budget.lease() as hold:
            async with before_deadline(params, trace, said=said) as clock:
                with service.using(model):
                    prepared = await self._read(model, trace, receive, hold)
                    outcomes = await infer(
                        service,
                        params,
                        prepared,
                        clock,
                        Requester(trace, receive),
                        hold,
                        charge=lambda images: self._gate.charge_images(scope.get(ACCOUNT_KEY), images),
                    )

                def write() -> tuple[bytes, list[tuple[bytes, bytes]]]:
                    return infer_answer(model, prepared.id, output_tensors(model, outcomes, prepared.options))

                body, headers = await service.parsers.run(write, prepared.answer_cost)
            hold.resize(len(body))  # until the client has read it
            await send_whole(send, trace, body, headers)

    async def _read(self, model: ModelInfo, trace: RequestContext, receive: Receive, hold: BudgetLease) -> Prepared:
        """The body, parsed, each image's header looked at."""
        settings = self._service.settings
        if payload_kind(trace.headers) == "multipart":
            raise ServiceError("unsupported_format", "multipart/form-data is not accepted: use application/json")
        body = await read_body(receive, trace.content_length(), settings.max_body_bytes, hold)
        trace.end_stage("receive")
        length = json_length(body, trace.headers.get(LENGTH_HEADER))
        request = await self._service.parsers.run(lambda: read_infer_request(body, length), length)
        cost, limit = sum(map(decoded_bytes, request.inputs)), DECODED_FACTOR * settings.max_body_bytes
        if cost > limit:
            raise ServiceError(
                "too_large", f"the images take {cost} bytes beside the JSON: limit {limit}; send them in binary"
            )
        hold.take(cost)
        return await self._service.parsers.run(lambda: prepare(request, model, settings), len(body))


def _model_of(service: Service, scope: Scope) -> ModelInfo:
    parameters = scope["path_params"]
    return find_version(service, parameters["name"], parameters.get("version", ""))


def _said(describe_it: Callable[[], Any]) -> Answer:
    async def answer(request: Request) -> Response:
        return JSONResponse(describe_it())

    return answer


def _about(service: Service, describe_it: Callable[[ModelInfo], Any]) -> Answer:
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
        with service.body_budget.lease() as hold:
            declared = context_of(request.scope).content_length()
            body = await read_body(request.receive, declared, MAX_QUESTION_BYTES, hold)
        params = decoded(body or b"{}", _IndexQuestion, 'the body, which must be {} or {"ready": true}')
        return JSONResponse(describe.repository_index(service, ready_only=params.ready))

    return answer
