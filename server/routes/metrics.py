"""GET /metrics on the service's own port; the metrics port serves the same from a thread of its own."""

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import Response
from prometheus_client.exposition import choose_encoder

from ..service import Service


def metric_routes(service: Service) -> APIRouter:
    """The scrape of one service."""
    router = APIRouter(tags=["metrics"])

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics(request: Request) -> Response:
        """Prometheus text, or OpenMetrics where it is asked for."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        # Reading the process's memory map takes milliseconds.
        body = await asyncio.to_thread(encode, service.metrics.registry)
        return Response(body, media_type=content_type)

    return router
