"""Answers how this server is and what it serves: probes, GET /v1/models, and GET /metrics on the service's own port."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from ..config.aliases import describe_alias
from ..errors import ServiceError
from ..http.responses import error_response
from ..service.service import Service
from .schemas import ErrorAnswer, Health, ModelList

_NOT_YET: dict[int | str, dict[str, Any]] = {
    503: {"model": ErrorAnswer, "description": "not now; `Retry-After` says when to ask again"}
}


def status_routes(service: Service) -> APIRouter:
    """Make the routes of one service, in the order in which the OpenAPI document has them."""
    router = APIRouter()
    _add_probes(router, service)

    @router.get("/v1/models", response_model=ModelList, tags=["models"])
    async def list_models() -> JSONResponse:
        """Every version of every served model, the default one first; empty while they load."""
        models = [
            {
                **model.describe(),
                "heads": [head.describe() for head in service.heads.fitting(model).values()],
                "default": index == 0,
                "limits": service.settings.limits_of(model.name),
                "shadow": (seen := service.shadows.evidence(model)) and seen.describe(),
            }
            for index, model in enumerate(service.models.every())
        ]
        aliases = [describe_alias(*alias) for alias in service.models.aliases.items()]
        return JSONResponse({"models": models, "aliases": aliases})

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}}, tags=["metrics"])
    async def metrics(request: Request) -> Response:
        """Prometheus text, or OpenMetrics where it is asked for."""
        gzipped = "gzip" in request.headers.get("accept-encoding", "")  # as on the metrics port: a seventh of the bytes
        body, content_type = await service.exposition(request.headers.get("accept", ""), gzipped)
        headers = {"vary": "accept, accept-encoding", **({"content-encoding": "gzip"} if gzipped else {})}
        return Response(body, media_type=content_type, headers=headers)

    return router


def _add_probes(router: APIRouter, service: Service) -> None:
    """Add the probes: is the engine alive, shall traffic come here, has the start succeeded? A probe that fails counts
    as no refused request."""

    @router.get("/livez", response_model=Health, responses=_NOT_YET, tags=["health"])
    async def livez(request: Request) -> Response:
        """Fails only when the engine has ended or hangs, or its decoder is lost for good: restart the process."""
        try:
            service.check_alive()
        except ServiceError as error:
            return error_response(request, error, status=503)
        return JSONResponse({"status": "ok"})

    @router.get("/health", response_model=Health, responses=_NOT_YET, tags=["health"])
    @router.get("/readyz", response_model=Health, responses=_NOT_YET, tags=["health"])
    async def readyz(request: Request) -> Response:
        """Fails while models load and from the moment of SIGTERM: route no requests here. `/health` is the same."""
        try:
            service.check_ready()
        except ServiceError as error:
            return error_response(request, error)
        return JSONResponse({"status": "ok"})

    @router.get("/startupz", response_model=Health, responses=_NOT_YET, tags=["health"])
    async def startupz(request: Request) -> Response:
        """Fails until every model is loaded and warm, then never again."""
        if service.models:
            return JSONResponse({"status": "ok"})
        return error_response(request, ServiceError("not_ready", "the models are loading", retry_after_seconds=1))
