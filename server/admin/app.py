"""The admin API: what the repository has, to load and unload it, and aliases. On a port of its own, off by default."""

import asyncio
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..config.aliases import AliasTarget, describe_alias
from ..errors import ServiceError, error_headers
from ..http.transport.counted_protocol import REFUSAL_KEY
from ..repository.served_model import ServedModel
from ..repository.store import RepositoryError, scan
from ..security.auth import Authenticator
from ..service.poller import RepositoryPoller
from ..service.service import Service

# Bytes of a body that is read; an alias needs a few dozen.
MAX_BODY_BYTES = 1 << 16

ADMIN = "admin"
"""The caller that alone may ask here, where API keys are on."""


class AliasBody(BaseModel):
    """What an alias shall stand for."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    model: str = Field(min_length=1, max_length=255)
    version: str | None = Field(default=None, min_length=1, max_length=80)


def create_admin_app(service: Service, gate: Authenticator | None = None) -> FastAPI:
    """The app of one service; `POST` changes what it serves and answers once that is done."""

    async def check(request: Request) -> None:  # on the event loop: that is where rates are counted
        # A page in a browser on this machine can post to any port, but not without telling where it is from.
        if "origin" in request.headers:
            raise ServiceError("unauthorized", "the admin API answers no browser")
        if gate is not None and gate.needs_key and gate.identify(dict(request.headers.raw)).name != ADMIN:
            raise ServiceError("unauthorized", f"the admin API answers the caller {ADMIN} alone")

    app = FastAPI(
        title="milkweed admin", docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(check)]
    )
    app.add_middleware(_WholeBodies)
    app.add_exception_handler(ServiceError, _refused)
    app.add_exception_handler(ValueError, _failed)

    @app.get("/v1/repository")
    async def index() -> JSONResponse:
        """Every bundle of the repository, newest versions first, and which of them serve."""
        watch = _watch(service)
        names = [
            {"name": each.name, "number": each.number or None, "serves": _serves(service, each.name, each.number)}
            for versions in (await asyncio.to_thread(scan, watch.root)).values()
            for each in versions
        ]
        return JSONResponse({"models": names})

    @app.post("/v1/repository/look")
    async def look() -> JSONResponse:
        """Serve what is new or changed, and no longer what is gone; what was done, in lines."""
        return JSONResponse({"done": await _watch(service).poll()})

    @app.post("/v1/models/{name}/load")
    async def load(name: str, number: str | None = None) -> JSONResponse:
        """Serve the newest version, or the number given; it answers who asks for no version."""
        return JSONResponse(_described(await _watch(service).load(name, number)))

    @app.post("/v1/models/{name}/unload")
    async def unload(name: str, version: str | None = None) -> JSONResponse:
        """Serve it no more; answered once its memory is back."""
        gone = await _watch(service).unload(name, version)
        return JSONResponse({"unloaded": [_described(model) for model in gone]})

    @app.get("/v1/aliases")
    async def aliases() -> JSONResponse:
        """Every alias and what it stands for."""
        return JSONResponse({"aliases": [describe_alias(*each) for each in service.models.aliases.items()]})

    @app.put("/v1/aliases/{name}")
    async def set_alias(name: str, request: Request) -> JSONResponse:
        """Let a name stand for a model, or one version of it, for whoever asks next."""
        _check_loaded(service)
        target = _target(await _body(request))
        before = service.lifecycle.set_alias(name, target)
        return JSONResponse({**describe_alias(name, target), "before": None if before is None else str(before)})

    @app.delete("/v1/aliases/{name}")
    async def delete_alias(name: str) -> JSONResponse:
        """Let a name stand for nothing."""
        _check_loaded(service)
        before = service.lifecycle.set_alias(name, None)
        return JSONResponse({"deleted": name, "before": str(before)})

    return app


class _WholeBodies:
    """An ASGI layer that tells who reads a body why the rest of it will never come."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def receive_or_raise() -> Message:
            message = await receive()
            if REFUSAL_KEY in scope:
                raise scope[REFUSAL_KEY]
            return message

        await self._app(scope, receive_or_raise, send)


async def _body(request: Request) -> bytes:
    body = b""
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_BODY_BYTES:
                text = f"the body has at least {len(body)} bytes; the limit is {MAX_BODY_BYTES}"
                raise ServiceError("too_large", text)  # the rest is thrown away, for as long as headers may take
    except ClientDisconnect:  # nobody will read this
        raise ServiceError("bad_request", "the client left in the middle of its body", close=True) from None
    return body


def _target(body: bytes) -> AliasTarget:
    try:
        read = AliasBody.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        message = f'{where}: {first["msg"]}; expected {{"model": "NAME", "version": "3" or null}}'
        raise ServiceError("bad_request", message) from None
    return AliasTarget(read.model, read.version)


def _check_loaded(service: Service) -> None:
    if not service.prepared.done():
        raise ServiceError("not_ready", "the models are loading", retry_after_seconds=1)


def _watch(service: Service) -> RepositoryPoller:
    if service.poller is None:
        raise ServiceError("not_found", "this server has no repository: --repository DIR")
    _check_loaded(service)
    return service.poller


def _serves(service: Service, name: str, number: str) -> bool:
    return any(model.number == number for model in service.models.versions(name))


def _described(model: ServedModel) -> dict[str, Any]:
    return {"name": model.name, "number": model.number or None, "version": model.version}


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)
    headers = {name.decode(): value.decode() for name, value in error_headers(error)}
    return JSONResponse({"error": {"code": error.code, "message": error.message}}, error.status, headers)


async def _failed(request: Request, error: Exception) -> Response:
    """A bundle that cannot be served: what served goes on. Only our own words are said."""
    code = 500 if isinstance(error, RepositoryError) else 422
    return JSONResponse({"error": {"code": "bad_bundle", "message": str(error)[:500]}}, code)
