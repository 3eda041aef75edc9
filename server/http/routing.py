"""Gives all routes of an app what HTTP asks of each: HEAD, OPTIONS, a full Allow, and words for a path that is none."""

from collections.abc import Sequence

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import ServiceError, did_you_mean

SERVER_METHODS = "GET, HEAD, OPTIONS, POST"  # `OPTIONS *` asks what the server as a whole takes


class Routing:
    """An ASGI layer around a router, which has `routes`: HEAD is GET (the server omits the body), OPTIONS is Allow."""

    def __init__(self, app: ASGIApp, *, routes: Sequence[BaseRoute]) -> None:
        self._app, self._routes = app, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = without_slash(scope)
            if scope["method"] in ("HEAD", "OPTIONS"):
                allow = SERVER_METHODS if scope["path"] == "*" else allowed(self._routes, scope["path"])
                if scope["method"] == "OPTIONS" and allow:
                    await Response(status_code=204, headers={"allow": allow})(scope, receive, send)
                    return
                if "GET" in allow:
                    scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)


def without_slash(scope: Scope) -> Scope:
    """Take a slash off the end of a path, which no route has; a redirect would make some clients send no body."""
    path = scope["path"]
    return {**scope, "path": path[:-1]} if path.endswith("/") and not path.endswith("//") and path != "/" else scope


def allowed(routes: Sequence[BaseRoute], path: str) -> str:
    """The methods that a path has, as Allow writes them; empty where there is no such path."""
    asked = {"type": "http", "path": path, "method": ""}
    here = [route for route in routes if isinstance(route, Route) and route.matches(asked)[0] is not Match.NONE]
    methods = {"OPTIONS"}.union(*(route.methods or () for route in here))
    return ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods)) if here else ""


def routing_error(routes: Sequence[BaseRoute], request: Request, exception: Exception) -> ServiceError:
    """What a router refuses (404, 405) as one of our errors; Allow has all methods of the path, on whatever routes."""
    assert isinstance(exception, HTTPException)
    # Not request.url: that reads the Host header, in which a client may write anything.
    path, allow = request.scope["path"], allowed(routes, request.scope["path"])
    where = f"{request.method[:10]} {''.join(char if char.isprintable() else '?' for char in path[:80])}"
    if exception.status_code == 405:
        return ServiceError("method_not_allowed", f"{where}: this path has other methods, see Allow", allow=allow)
    near = "" if allow else did_you_mean(path, [route.path for route in routes if isinstance(route, Route)])
    return ServiceError("not_found", f"{where}: there is no such path{near or ', see /docs'}")
