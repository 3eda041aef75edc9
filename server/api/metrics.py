"""Answers GET /metrics on the service's own port; the metrics port serves the same from a thread of its own."""

import asyncio
import gzip

from fastapi import APIRouter, Request
from fastapi.responses import Response

from ..service.service import Service


def metric_routes(service: Service) -> APIRouter:
    """Make the route of one service."""
    router = APIRouter(tags=["metrics"])

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics(request: Request) -> Response:
        """Prometheus text, or OpenMetrics where it is asked for."""
        body, content_type = await service.exposition(request.headers.get("accept", ""))
        headers = {"vary": "accept, accept-encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):  # as on the metrics port: a seventh of the bytes
            body = await asyncio.to_thread(gzip.compress, body, 1)
            headers["content-encoding"] = "gzip"
        return Response(body, media_type=content_type, headers=headers)

    return router
