"""Builds the admin API, which lists, loads and unloads models and sets aliases; its port is off by default."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...models.heads.embedding_head import MAX_HEAD_BYTES
from ..config.aliases import AliasTarget, describe_alias
from ..errors import ServiceError, error_headers
from ..http.parameters import read_pairs
from ..http.routing import Routing, routing_error
from ..http.transport.counted_protocol import REFUSAL_KEY
from ..repository.heads import make_head
from ..repository.served_model import ServedModel
from ..repository.store import RepositoryError, StoredBundle
from ..security.auth import Authenticator
from ..service.poller import RepositoryPoller
from ..service.service import Service

MAX_BODY_BYTES = 1 << 16
"""Bytes that a body may have, that of a head aside; an alias needs a few dozen."""

ADMIN = "admin"
"""The only caller that this API answers where API keys are on."""


class AliasCondition(BaseModel):
    """What is asked of a shadow before an alias moves to it: the lower end of its agreement's interval, and images."""

    model_config = ConfigDict(extra="forbid", strict=True)

    shadow_agreement: float = Field(ge=0, le=1)
    images: int = Field(ge=1)


class AliasBody(BaseModel):
    """The body that says what an alias shall stand for."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    model: str = Field(min_length=1, max_length=255)
    version: str | None = Field(default=None, min_length=1, max_length=80)
    condition: AliasCondition | None = Field(default=None, alias="if")


_HEAD_BODY = {"required": True, "content": {"application/octet-stream": {"schema": {"format": "binary"}}}}
_SCHEMA = AliasBody.model_json_schema()
_SCHEMA["properties"]["if"] = _SCHEMA.pop("$defs")["AliasCondition"]  # a reference would be into the whole document
_ALIAS_BODY = {"required": True, "content": {"application/json": {"schema": _SCHEMA}}}


def create_admin_app(service: Service, auth: Authenticator | None = None) -> FastAPI:
    """Build the app of one service; `POST` changes what is served and answers once that is done."""

    async def check(request: Request) -> None:  # async, so that it runs on the event loop, where rates are counted
        query = [field.alias for field in request.scope["route"].dependant.query_params]
        read_pairs(request.query_params.multi_items(), "parameter", query)  # a misspelt `version` would unload them all
        if request.method == "POST" and (await request.body()).strip():
            raise ServiceError("bad_request", f"this path takes no body; parameters: {', '.join(query) or 'none'}")
        # A page in a browser on this machine can post to any port, but its browser adds the origin.
        if "origin" in request.headers:
            raise ServiceError("unauthorized", "the admin API answers no browser")
        if auth is not None and auth.needs_key and auth.identify(dict(request.headers.raw)).name != ADMIN:
            raise ServiceError("unauthorized", f"the admin API answers the caller {ADMIN} alone")

    app = FastAPI(
        title="milkweed admin", docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(check)]
    )
    app.add_middleware(_WholeBodies)
    routes = admin_routes(service)
    app.add_middleware(Routing, routes=routes)
    app.add_exception_handler(ServiceError, _refused)
    app.add_exception_handler(HTTPException, partial(_unrouted, routes))
    app.add_exception_handler(ValueError, _failed)
    app.include_router(APIRouter(routes=routes))
    return app


def admin_routes(service: Service) -> list[BaseRoute]:
    """Make the routes of one service."""
    return [*_repository_routes(service).routes, *_alias_routes(service).routes, *_head_routes(service).routes]


def _repository_routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/repository")
    async def index() -> JSONResponse:
        """List every bundle of the repository, newest versions first: which of them are served, and why one is not."""
        poller = _poller(service)
        versions = (await poller.scan()).values()
        return JSONResponse({"models": [_entry(service, bundle) for stored in versions for bundle in stored]})

    @router.post("/v1/repository/poll")
    async def poll() -> JSONResponse:
        """Load what is new or changed and unload what is gone; the answer tells in lines what was done."""
        return JSONResponse({"done": await _poller(service).poll()})

    @router.post("/v1/models/{name}/load")
    async def load(name: str, number: str | None = None) -> JSONResponse:
        """Load the newest version, or the number given; it answers requests that name no version."""
        return JSONResponse(_summary(await _poller(service).load(name, number)))

    @router.post("/v1/models/{name}/unload")
    async def unload(name: str, version: str | None = None) -> JSONResponse:
        """Unload a model, and answer once its memory is free."""
        return JSONResponse({"unloaded": [_summary(gone) for gone in await _poller(service).unload(name, version)]})

    return router


def _alias_routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/aliases")
    async def aliases() -> JSONResponse:
        """List every alias and what it stands for."""
        return JSONResponse({"aliases": [describe_alias(*alias) for alias in service.models.aliases.items()]})

    @router.put("/v1/aliases/{name}", openapi_extra={"requestBody": _ALIAS_BODY})
    async def set_alias(name: str, request: Request) -> JSONResponse:
        """Let a name stand for a model, or one version of it, from the next request on; with `if`, once a shadow agrees
        with its model, until when the answer is 409 `not_yet`."""
        _check_loaded(service)
        target, condition = _target(await _body(request))
        if condition is not None:
            service.models.with_alias(name, target)  # raises
            _check_evidence(service, target, condition)
        before = service.lifecycle.set_alias(name, target)
        return JSONResponse({**describe_alias(name, target), "before": None if before is None else str(before)})

    @router.delete("/v1/aliases/{name}")
    async def delete_alias(name: str) -> JSONResponse:
        """Delete an alias."""
        _check_loaded(service)
        before = service.lifecycle.set_alias(name, None)
        return JSONResponse({"deleted": name, "before": str(before)})

    return router


def _check_evidence(service: Service, target: AliasTarget, condition: AliasCondition) -> None:
    evidence = service.shadows.evidence(service.models.find(target.model, target.version))
    if evidence is None:
        raise ServiceError("conflict", f"{target} is no shadow: --shadow {target.model}=MODEL:SHARE")
    evidence.check(condition.shadow_agreement, condition.images)


def _head_routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.put("/v1/models/{name}/heads/{head}", openapi_extra={"requestBody": _HEAD_BODY})
    async def set_head(name: str, head: str, request: Request) -> JSONResponse:
        """Serve a head, a safetensors file, from the next request on; those that run keep the one they have."""
        _check_loaded(service)
        model, body = service.models.find(name), await _body(request, MAX_HEAD_BYTES)
        served = await service.parsers.run(lambda: make_head(model.name, head, model, lambda: body), len(body))
        before = service.heads.put(model.name, served)
        return JSONResponse({**served.describe(), "before": None if before is None else before.head.version})

    @router.delete("/v1/models/{name}/heads/{head}")
    async def delete_head(name: str, head: str) -> JSONResponse:
        """Serve a head no more."""
        _check_loaded(service)
        return JSONResponse({"deleted": service.heads.delete(service.models.find(name), head).describe()})

    return router


class _WholeBodies:
    """An ASGI layer that raises the reason why the rest of a body will never come, where it is read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def receive_or_raise() -> Message:
            message = await receive()
            if REFUSAL_KEY in scope:
                raise scope[REFUSAL_KEY]
            return message

        await self._app(scope, receive_or_raise, send)


async def _body(request: Request, most: int = MAX_BODY_BYTES) -> bytes:
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > most:
                text = f"the body has at least {len(body)} bytes; the limit is {most}"
                raise ServiceError("too_large", text)  # the connection drops the rest, within the header timeout
    except ClientDisconnect:  # nobody will read this
        raise ServiceError("bad_request", "the client left in the middle of its body", close=True) from None
    return bytes(body)


def _target(body: bytes) -> tuple[AliasTarget, AliasCondition | None]:
    try:
        read = AliasBody.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        message = f'{where}: {first["msg"]}; expected {{"model": "NAME", "version": "3" or null}}'
        raise ServiceError("bad_request", message) from None
    return AliasTarget(read.model, read.version), read.condition


def _check_loaded(service: Service) -> None:
    if not service.prepared.done():
        raise ServiceError("not_ready", "the models are loading", retry_after_seconds=1)


def _poller(service: Service) -> RepositoryPoller:
    if service.poller is None:
        raise ServiceError("not_found", "this server has no repository: --repository DIR")
    _check_loaded(service)
    return service.poller


def _entry(service: Service, stored: StoredBundle) -> dict[str, Any]:
    serves = any(model.number == stored.number for model in service.models.versions(stored.name))
    error = service.lifecycle.failures.get((stored.name, stored.number))
    return {"name": stored.name, "number": stored.number or None, "serves": serves, "error": error}


def _summary(model: ServedModel) -> dict[str, Any]:
    return {"name": model.name, "number": model.number or None, "version": model.version}


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)
    headers = {name.decode(): value.decode() for name, value in error_headers(error)}
    return JSONResponse({"error": {"code": error.code, "message": error.message}}, error.status, headers)


async def _unrouted(routes: Sequence[BaseRoute], request: Request, error: Exception) -> Response:
    return await _refused(request, routing_error(routes, request, error))


async def _failed(request: Request, error: Exception) -> Response:
    """Answer for a bundle that cannot be served; whatever is served goes on. The message is always one of ours."""
    code = 500 if isinstance(error, RepositoryError) else 422
    return JSONResponse({"error": {"code": "bad_bundle", "message": str(error)[:500]}}, code)
