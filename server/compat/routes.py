"""Makes the routes of the other servers' protocols that the settings name, and the shapes of their errors."""

import os
import re
from collections.abc import Iterator, Sequence

from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from ..api.app import MoreRoutes
from ..api.classify import Classify
from ..config.compat import PING, READY, vertex_paths
from ..http.parameters import joined, read_pairs, read_query
from ..oip.error_format import ErrorShape, oip_error
from ..oip.rest import model_probe, probe
from ..security.auth import PAGE_FILES, Authenticator
from ..service.service import Service
from ..telemetry.context import RequestContext
from .instances import Predict
from .torchserve import TORCHSERVE_ERRORS, torchserve_routes

_ATTRIBUTES = b"x-amzn-sagemaker-custom-attributes"
_KSERVE = "/v1/models/{name}"


class Invocations(Classify):
    """Classify images, as /classify does; `X-Amzn-SageMaker-Custom-Attributes` may have the parameters."""

    def asked(self, scope: Scope, context: RequestContext) -> dict[str, str]:
        """Read `key=value, ...`, the only way through SageMaker; what is no pair, such as an id to trace by, passes."""
        said = context.headers.get(_ATTRIBUTES, b"").decode("latin-1")
        pairs = [part.partition("=") for part in said.split(",")]
        asked = read_pairs([(key.strip(), value.strip()) for key, equals, value in pairs if equals], "custom attribute")
        return joined(read_query(scope["query_string"]), asked)


def compat_routes(service: Service, auth: Authenticator) -> MoreRoutes:
    """Make the routes of one service, and the shapes of their errors. Raises ValueError as `vertex_paths`."""
    errors = list(_errors(service.settings.compat.split(",")))
    return MoreRoutes(_routes(service, auth), errors, _check)


def _check(routes: Sequence[BaseRoute]) -> None:
    """Raises ValueError where a path that Vertex AI names is another one of an app's: it might need no key."""
    for route in (route for route in routes if isinstance(route, Route) and route.name == "vertex"):
        asked = {"type": "http", "path": route.path, "method": ""}
        others = [other for other in routes if other is not route and other.matches(asked)[0] is not Match.NONE]
        if others or route.path.startswith(PAGE_FILES):
            ready = ", ".join(sorted(READY))
            raise ValueError(
                f"compat = vertex: {route.path} is a path of this server already; for health it may be {ready}"
            )


def _routes(service: Service, auth: Authenticator) -> list[Route]:
    named = service.settings.compat.split(",")
    routes = torchserve_routes(service, auth) if "torchserve" in named else []
    pings = [name for name in ("torchserve", "sagemaker") if name in named]
    if pings:  # they agree on it
        routes.append(Route(PING, probe({"status": "Healthy"}, service.check_ready), name=pings[0]))
    if "kserve-v1" in named:
        for path in (f"{_KSERVE}:predict", f"{_KSERVE}/versions/{{version}}:predict"):
            routes.append(Route(path, Predict(service, auth, path), methods=["POST"], name="kserve-v1"))
        routes.append(Route(_KSERVE, model_probe(service), name="kserve-v1"))
    if "sagemaker" in named:
        invocations = Invocations(service, auth, "/invocations")
        routes.append(Route("/invocations", invocations, methods=["POST"], name="sagemaker"))
    if "vertex" in named:
        paths = vertex_paths(os.environ)
        routes.append(Route(paths.predict, Predict(service, auth, paths.predict), methods=["POST"], name="vertex"))
        if paths.health not in READY | ({PING} if pings else set()):
            routes.append(Route(paths.health, probe({"status": "ok"}, service.check_ready), name="vertex"))
    return routes


def _errors(named: Sequence[str]) -> Iterator[ErrorShape]:
    """Yield the shapes; errors of /invocations are as those of /classify."""
    if "torchserve" in named:
        yield TORCHSERVE_ERRORS
    if "kserve-v1" in named:
        yield ErrorShape(re.compile("/v1/models/."), oip_error)
    if "vertex" in named:
        yield ErrorShape(re.compile(re.escape(vertex_paths(os.environ).predict) + "$"), oip_error)
