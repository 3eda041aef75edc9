"""An app that speaks all protocols, as a container of Vertex AI would start it."""

from collections.abc import AsyncIterator

import pytest

from ...support.server_parts import Running, running_app

PREDICT = "/v1/endpoints/123/deployedModels/456:predict"
HEALTH = "/v1/endpoints/123/deployedModels/456"
ALL = "torchserve,kserve-v1,sagemaker,vertex"


@pytest.fixture(scope="module")
def vertex_environment() -> object:
    """The variables of a container of Vertex AI, with the paths that it makes up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIP_PREDICT_ROUTE", PREDICT)
        patch.setenv("AIP_HEALTH_ROUTE", HEALTH)
        yield patch


@pytest.fixture(scope="module")
async def module_app(vertex_environment: object, anyio_backend: str) -> AsyncIterator[Running]:
    """Two models, the first of which is the default, and three images a request at most."""
    async with running_app(settings={"compat": ALL, "max_images_per_request": 3}, names=("held", "other")) as app:
        yield app
