"""Answers GET /v1/models: what is served, on which device, and how many bytes it takes."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from ..config.aliases import describe_alias
from ..service.service import Service
from .schemas import ModelList


def model_routes(service: Service) -> APIRouter:
    """Make the route of one service."""
    router = APIRouter(tags=["models"])

    @router.get("/v1/models", response_model=ModelList)
    async def list_models() -> JSONResponse:
        """Every version of every served model, the default one first; empty while they load."""
        models = [
            {**model.describe(), "default": index == 0, "limits": service.settings.limits_of(model.name)}
            for index, model in enumerate(service.models.every())
        ]
        aliases = [describe_alias(*each) for each in service.models.aliases.items()]
        return JSONResponse({"models": models, "aliases": aliases})

    return router
