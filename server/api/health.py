"""Answers three probes: is the engine alive, shall traffic come here, has the start succeeded."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from ..errors import ServiceError
from ..http.responses import error_response
from ..service.service import Service
from .schemas import ErrorAnswer, Health

_NOT_YET: dict[int | str, dict[str, Any]] = {
    503: {"model": ErrorAnswer, "description": "not now; `Retry-After` says when to ask again"}
}


def health_routes(service: Service) -> APIRouter:
    """Make the probes of one service; one that fails is not counted as a refused request."""
    router = APIRouter(tags=["health"])

    @router.get("/livez", response_model=Health, responses=_NOT_YET)
    async def livez(request: Request) -> Response:
        """Fails only when the engine has ended or hangs, or its decoder is lost for good: restart the process."""
        try:
            service.check_alive()
        except ServiceError as error:
            return error_response(request, error, status=503)
        return JSONResponse({"status": "ok"})

    @router.get("/readyz", response_model=Health, responses=_NOT_YET)
    async def readyz(request: Request) -> Response:
        """Fails while models load and from the moment of SIGTERM: route no requests here."""
        try:
            service.check_ready()
        except ServiceError as error:
            return error_response(request, error)
        return JSONResponse({"status": "ok"})

    @router.get("/startupz", response_model=Health, responses=_NOT_YET)
    async def startupz(request: Request) -> Response:
        """Fails until every model is loaded and warm, then never again."""
        if service.models:
            return JSONResponse({"status": "ok"})
        return error_response(request, ServiceError("not_ready", "the models are loading", retry_after_seconds=1))

    return router
