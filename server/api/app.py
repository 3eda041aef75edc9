"""Builds the HTTP app of one service: routes, middleware, OpenAPI document."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Lifespan, Receive, Scope, Send

from ..config.settings import OFF, Settings
from ..http.middleware import RequestMiddleware
from ..http.responses import error_response
from ..http.routing import Routing, routing_error, without_slash
from ..oip.error_format import OIP_ERRORS, ErrorFormat, ErrorShape
from ..oip.rest import oip_routes
from ..security.auth import Authenticator
from ..service.service import Service
from ..telemetry.access_log import AccessLog
from ..telemetry.context import context_of
from ..telemetry.metrics import package_version
from ..telemetry.tracer import Tracer
from .classify import Classify
from .docs import docs_routes
from .embed import EmbedImages, OpenAiEmbeddings
from .page import page_routes
from .status import status_routes


class MoreRoutes(NamedTuple):
    """Routes beside our own, what errors on them look like, and what raises ValueError where they hide others of an
    app."""

    routes: Sequence[BaseRoute]
    errors: Sequence[ErrorShape]
    check: Callable[[Sequence[BaseRoute]], None]


def http_app(
    service: Service, auth: Authenticator, *, tracer: Tracer | None, lifespan: Lifespan[FastAPI], more: MoreRoutes
) -> FastAPI:
    """Build the app, all but its OpenAPI document. `lifespan`: entered before the first request and left after the
    last one."""
    options: dict[str, Any] = {"docs_url": None, "redoc_url": None, "redirect_slashes": False}
    app = _App(title="milkweed", version=package_version(), lifespan=lifespan, **options)
    classify = Classify(service, auth, "/classify")
    app.router.routes.insert(0, Route("/classify", classify, methods=["POST"], name="classify"))
    for endpoint in (EmbedImages(service, auth, "/embed"), OpenAiEmbeddings(service, auth, "/v1/embeddings")):
        app.router.routes.append(Route(endpoint.route, endpoint, methods=["POST"], name=endpoint.route[1:]))
    app.router.routes += [*oip_routes(service, auth), *more.routes]
    for router in (status_routes(service), docs_routes(app), *([page_routes()] if service.settings.page else [])):
        app.router.routes.extend(router.routes)
    more.check(app.routes)
    around = partial(
        RequestMiddleware,
        auth=auth,
        metrics=service.metrics,
        routes=[path for route in app.routes if (path := getattr(route, "path", None))],
        draining=lambda: service.draining,
        access_log=AccessLog.of(service.settings),
        tracer=tracer,
    )
    app.classify = cors(service.settings, around(classify))
    app.add_middleware(Routing, routes=app.routes)
    app.add_middleware(around)
    app.add_middleware(ErrorFormat, shapes=[OIP_ERRORS, *more.errors])  # around all those
    app.add_middleware(partial(cors, service.settings))  # a preflight has no key
    app.add_exception_handler(HTTPException, partial(_unrouted, app.routes))
    return app


def cors(settings: Settings, app: ASGIApp) -> ASGIApp:
    """Let pages of other origins ask, where the settings name some."""
    if settings.cors_origins == OFF:
        return app
    exposed = ("X-Request-ID", "Server-Timing", "Retry-After", "Inference-Header-Content-Length")
    origins = settings.cors_origins.split(",")
    methods = ("GET", "HEAD", "POST")
    return CORSMiddleware(app, origins, methods, allow_headers=("*",), expose_headers=exposed)


class _App(FastAPI):
    """FastAPI, and a shortcut past its layers for POST /classify, which must be cheap and needs none of them."""

    classify: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        if scope.get("root_path"):
            scope = _without_root(scope)
        scope = without_slash(scope)
        if scope["path"] == "/classify" and scope["method"] == "POST":
            await self.classify(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


async def _unrouted(routes: Sequence[BaseRoute], request: Request, exception: Exception) -> Response:
    """Write what the router refuses (404, 405) in the shape of our errors."""
    error = routing_error(routes, request, exception)
    context_of(request.scope).code = error.code
    return error_response(request, error)


def _without_root(scope: Scope) -> Scope:
    """Take the prefix of a mount (`root_path`) off the path, by which keys are required and requests are counted.

    With the prefix a path could look like one that needs no key.
    """
    root, path = scope["root_path"].rstrip("/"), scope["path"]
    if path.startswith(root + "/"):
        path = path[len(root) :]
    return {**scope, "path": path, "root_path": ""}
