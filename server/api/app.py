"""The app that speaks HTTP, for one service: its routes, its middleware, its OpenAPI document."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ..config.settings import Settings
from ..errors import ServiceError
from ..http.middleware import RequestMiddleware
from ..http.responses import error_response
from ..oip.error_format import ErrorForm
from ..oip.rest import oip_routes
from ..security.auth import Authenticator
from ..service.service import Service
from ..telemetry.access_log import AccessLog
from ..telemetry.context import context_of
from ..telemetry.metrics import package_version
from ..telemetry.tracer import Tracer
from . import schemas
from .classify import Classify
from .classify_openapi import classify_path
from .docs import docs_routes
from .health import health_routes
from .metrics import metric_routes
from .models import model_routes
from .openapi import add_security
from .page import home_routes

_DOCUMENTED: tuple[type[BaseModel], ...] = (
    schemas.ClassifyAnswer,
    schemas.ClassifyFailure,
    schemas.ClassifyJson,
    schemas.ErrorAnswer,
)


def http_app(
    service: Service,
    gate: Authenticator,
    *,
    tracer: Tracer | None,
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]],
) -> FastAPI:
    """The app.

    Args:
        lifespan: what begins before the first request and ends after the last one.
    """
    app = _App(
        title="milkweed",
        version=package_version(),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    classify = Classify(service, gate)
    app.router.routes.insert(0, Route("/classify", classify, methods=["POST"], name="classify"))
    app.router.routes.extend(oip_routes(service, gate))
    routers = [health_routes(service), model_routes(service), metric_routes(service), docs_routes(app)]
    if service.settings.page:
        routers.append(home_routes())
    routes = [*app.routes, *(route for router in routers for route in router.routes)]
    templates = [path for route in routes if (path := getattr(route, "path", None))]
    for router in routers:
        app.include_router(router)
    around = partial(
        RequestMiddleware,
        auth=gate,
        metrics=service.metrics,
        routes=templates,
        draining=lambda: service.draining,
        access_log=AccessLog.of(service.settings),
        tracer=tracer,
    )
    app.classify = around(classify)
    app.whole = around(_options)
    app.add_middleware(around)
    app.add_middleware(ErrorForm)  # around all others
    app.add_exception_handler(HTTPException, _http_error)
    app.openapi = lambda: _document(app, service.settings, gate)  # type: ignore[method-assign]
    return app


class _App(FastAPI):
    """FastAPI, with a way past it for the path that must be cheap and needs none of its layers."""

    classify: ASGIApp
    whole: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        if scope.get("root_path"):
            scope = _without_root(scope)
        if scope["path"] == "/classify" and scope["method"] == "POST":
            await self.classify(scope, receive, send)
        elif scope["path"] == "*":
            await self.whole(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


async def _options(scope: Scope, receive: Receive, send: Send) -> None:
    """`OPTIONS *`: what the server as a whole takes."""
    await Response(status_code=204, headers={"allow": "GET, HEAD, OPTIONS, POST"})(scope, receive, send)


def _without_root(scope: Scope) -> Scope:
    """The request as it is where the app is mounted: what needs a key, and what is counted, is told by the path.

    The path of a scope has the prefix of a mount in it (`root_path`), and so could look like one that needs no key.
    """
    root, path = scope["root_path"].rstrip("/"), scope["path"]
    if path.startswith(root + "/"):
        path = path[len(root) :]
    return {**scope, "path": path, "root_path": ""}


async def _http_error(request: Request, exception: Exception) -> Response:
    """What the router refuses (404, 405), in our shape."""
    assert isinstance(exception, HTTPException)
    # Not request.url: that reads the Host header, in which a client may write anything.
    where = f"{request.method[:10]} {_shown(request.scope['path'])}"
    if exception.status_code == 405:
        error = ServiceError("method_not_allowed", f"{where}: this path has other methods, see Allow")
    elif exception.status_code == 404:
        error = ServiceError("not_found", f"{where}: there is no such path, see /docs")
    else:
        error = ServiceError("bad_request", str(exception.detail))
    context_of(request.scope).code = error.code
    response = error_response(request, error, status=exception.status_code)
    response.headers.update(exception.headers or {})
    return response


def _shown(path: str) -> str:
    """A path on one line, at most 80 characters of it."""
    return "".join(char if char.isprintable() else "?" for char in path[:80])


def _document(app: FastAPI, settings: Settings, gate: Authenticator) -> dict[str, Any]:
    """FastAPI's OpenAPI document with the hand-written route in it; made once."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        document["paths"] = {"/classify": classify_path(settings), **document["paths"]}
        _, definitions = models_json_schema(
            [(model, "serialization") for model in _DOCUMENTED],
            ref_template="#/components/schemas/{model}",
        )
        document.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
        add_security(document, gate)
        app.openapi_schema = document
    return app.openapi_schema
