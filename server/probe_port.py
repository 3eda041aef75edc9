"""The probes beside /metrics on the metrics port: for whoever has no client certificate, on threads of their own."""

from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

from .errors import ServiceError
from .service import Service

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def with_probes(metrics: WsgiApp, service: Service) -> WsgiApp:
    """`metrics`, and /livez and /readyz before it; the service is only read."""
    checks = {"/livez": service.check_alive, "/readyz": service.check_ready}

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        check = checks.get(environ.get("PATH_INFO", ""))
        if check is None:
            return metrics(environ, start_response)
        status, text = HTTPStatus.OK, "ok"
        try:
            check()
        except ServiceError as error:
            status, text = HTTPStatus.SERVICE_UNAVAILABLE, error.message
        start_response(f"{status.value} {status.phrase}", [("Content-Type", "text/plain; charset=utf-8")])
        return [text.encode() + b"\n"]

    return app
