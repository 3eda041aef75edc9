"""Serves the REST half of the Open Inference Protocol: /v2 and the paths below it."""

import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ..errors import ServiceError
from ..http.body import read_body
from ..http.client_json import decoded
from ..http.payload import payload_kind
from ..http.responses import HttpAnswer, error_response, send_whole
from ..repository.served_model import ServedModel
from ..security.auth import ACCOUNT_KEY, Authenticator
from ..service.caller import Caller
from ..service.inference_handler import ChangeParams, Query
from ..service.params import ClassifyParams, params_for
from ..service.service import Service
from ..telemetry.context import context_of
from . import metadata as describe
from .images import decoded_bytes
from .infer import read_query
from .metadata import version_of
from .rest_request import LENGTH_HEADER, json_length, read_infer_request
from .tensors import OutputTensor

DECODED_FACTOR = 2
"""The images of a request may take this many times the largest body, beside the body that they came in."""

MAX_INDEX_BYTES = 1 << 16
"""Bytes that the body of a request for the repository index may have."""

_MODEL = "/v2/models/{name}"
_VERSION = "/v2/models/{name}/versions/{version}"

Handler = Callable[[Request], Awaitable[Response]]


class _IndexParams(Struct):
    ready: bool = False


def oip_routes(service: Service, auth: Authenticator) -> list[Route]:
    """Make the routes of one service."""
    routes = [
        Route("/v2", _server_metadata),
        Route("/v2/health/live", probe({"live": True}, service.check_alive)),
        Route("/v2/health/ready", probe({"ready": True}, service.check_ready)),
        Route("/v2/repository/index", _index(service), methods=["POST"]),
        Route("/v2/models/stats", _stats(service)),
    ]

    def versions(name: str) -> tuple[ServedModel, ...]:
        return service.models.versions(name)  # the index changes

    for path in (_MODEL, _VERSION):
        routes += [
            Route(path, _model_document(service, lambda model: describe.model_metadata(model, versions(model.name)))),
            Route(f"{path}/ready", model_probe(service)),
            Route(f"{path}/config", _model_document(service, partial(describe.model_config, service.settings))),
            Route(f"{path}/stats", _stats(service)),
            Route(f"{path}/infer", Infer(service, auth), methods=["POST"]),
        ]
    return routes


class Infer:
    """Answers POST .../infer."""

    def __init__(self, service: Service, auth: Authenticator) -> None:
        self._service = service
        self._auth = auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context, service = context_of(scope), self._service
        service.check_accepting()
        if scope["query_string"]:
            raise ServiceError("bad_request", "infer takes no query: `parameters` of the request have top_k and others")
        model = _model_of(service, scope)
        said = context.headers.get(b"x-model-version", b"").decode("latin-1").strip()
        if said and said not in (model.number, model.version):
            raise ServiceError("bad_request", f"X-Model-Version is {said[:40]!r}, the URL's {version_of(model)}")
        params = params_for(model, context.headers, service.settings)
        charge = partial(self._auth.charge_images, scope.get(ACCOUNT_KEY))
        with service.body_budget.lease() as lease:
            caller = Caller(context, receive, lease, charge)
            read = partial(self._read, params, scope["path_params"]["name"], receive, caller)
            answer = await service.handler.answer(params, caller, read)
            await send_whole(send, context, lease, answer)

    async def _read(
        self, params: ClassifyParams, name: str, receive: Receive, caller: Caller, change: ChangeParams
    ) -> Query[HttpAnswer]:
        """Read and parse the body, and check each image's header. `name`: the model's in the URL."""
        settings, parsers, model = self._service.settings, self._service.parsers, params.model
        context, lease = caller.context, caller.lease
        if payload_kind(context.headers) == "multipart":
            raise ServiceError("unsupported_format", "multipart/form-data is not accepted: use application/json")
        body = await read_body(receive, context.content_length(), settings.max_body_bytes, lease)
        context.end_stage("receive")
        known = (name, model.name), (model.version, model.number)
        length = json_length(body, context.headers.get(LENGTH_HEADER))
        request = await parsers.run(lambda: read_infer_request(body, length, *known), length)
        cost, limit = sum(map(decoded_bytes, request.inputs)), DECODED_FACTOR * settings.max_body_bytes
        if cost > limit:
            raise ServiceError(
                "too_large", f"the images take {cost} bytes beside the JSON: limit {limit}; send them in binary"
            )
        lease.take(cost)
        return await read_query(self._service, request, len(body), params, partial(infer_answer, model), change)


def infer_answer(model: ServedModel, id: str | None, outputs: Sequence[OutputTensor]) -> HttpAnswer:
    """Write the body and headers of an answer: JSON, and behind it the outputs that are wanted in binary."""
    document: dict[str, Any] = {"model_name": model.name, "model_version": version_of(model)}
    if id is not None:
        document["id"] = id
    tails = [output.to_bytes() if output.binary else None for output in outputs]
    document["outputs"] = [_entry(output, tail) for output, tail in zip(outputs, tails, strict=True)]
    text = json.dumps(document, allow_nan=False).encode()
    if all(tail is None for tail in tails):
        return HttpAnswer(text)
    length = (b"inference-header-content-length", b"%d" % len(text))
    body = b"".join([text, *(tail for tail in tails if tail is not None)])
    return HttpAnswer(body, [(b"content-type", b"application/octet-stream"), length])


def _entry(output: OutputTensor, tail: bytes | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": output.shape}
    if tail is not None:
        return {**entry, "parameters": {"binary_data_size": len(tail)}}
    return {**entry, "data": output.to_json()}


def _model_of(service: Service, scope: Scope) -> ServedModel:
    parameters = scope["path_params"]
    return service.find_version(parameters["name"], parameters.get("version", ""))


async def _server_metadata(request: Request) -> Response:
    return JSONResponse(describe.server_metadata())


def _model_document(service: Service, describe_model: Callable[[ServedModel], Any]) -> Handler:
    async def answer(request: Request) -> Response:
        return JSONResponse(describe_model(_model_of(service, request.scope)))

    return answer


def probe(body: dict[str, Any], check: Callable[[], None]) -> Handler:
    """Answer a probe, with `body` where it succeeds; one that fails is not counted as a refused request."""

    async def answer(request: Request) -> Response:
        try:
            check()
        except ServiceError as error:
            return error_response(request, error, status=503)
        return JSONResponse(body)

    return answer


def model_probe(service: Service) -> Handler:
    """Answer whether the model that the path names is ready."""

    async def answer(request: Request) -> Response:
        try:
            model = _model_of(service, request.scope)
            service.check_ready()
        except ServiceError as error:
            return error_response(request, error)
        return JSONResponse({"name": model.name, "ready": True})

    return answer


def _stats(service: Service) -> Handler:
    async def answer(request: Request) -> Response:
        named = "name" in request.path_params
        models = [_model_of(service, request.scope)] if named else list(service.models.values())
        return JSONResponse({"model_stats": describe.statistics(models, await service.statistics())})

    return answer


def _index(service: Service) -> Handler:
    async def answer(request: Request) -> Response:
        with service.body_budget.lease() as lease:
            declared = context_of(request.scope).content_length()
            body = await read_body(request.receive, declared, MAX_INDEX_BYTES, lease)
        params = decoded(body or b"{}", _IndexParams, 'the body, which must be {} or {"ready": true}')
        index = describe.repository_index(service.models, service.lifecycle.failures, service.bundles, params.ready)
        return JSONResponse(index)

    return answer
