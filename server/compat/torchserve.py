"""Speaks TorchServe's inference API: one image a request, answered as its handler `image_classifier` does."""

import json
import re

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..errors import ServiceError
from ..http.payload import PayloadFormat, payload_kind
from ..http.responses import HttpAnswer
from ..oip.error_format import ErrorShape
from ..scheduler.request import Outcome
from ..security.auth import Authenticator
from ..service.params import ClassifyParams
from ..service.service import Service
from ..telemetry.context import RequestContext
from .whole import WholeRequest, rows_of

_METHODS = ["POST", "PUT"]  # curl -T

# TorchServe's own names, by status; the code `unknown_model` has one by itself.
_TYPES = {
    401: "InvalidKeyException",
    404: "ResourceNotFoundException",
    405: "MethodNotAllowedException",
    429: "ServiceUnavailableException",
    503: "ServiceUnavailableException",
}


def torchserve_routes(service: Service, auth: Authenticator) -> list[Route]:
    """Make the routes of one service, all but its probe."""
    paths = ("/predictions/{name}", "/predictions/{name}/{version}")

    async def models(request: Request) -> Response:
        """List what is served."""
        return JSONResponse({"models": [{"modelName": name, "modelUrl": name} for name in service.models]})

    predict = [Route(path, PredictImage(service, auth, path), methods=_METHODS, name="torchserve") for path in paths]
    return [*predict, Route("/models", models, name="torchserve")]


class PredictImage(WholeRequest):
    """Classify one image."""

    max_images = 1

    def form(self, context: RequestContext) -> PayloadFormat:
        """The body is an image, or a form with a file, which TorchServe's clients call `data`."""
        form = payload_kind(context.headers)
        if form == "json":
            raise ServiceError("unsupported_format", "JSON is not accepted: send one image, as it is or in a form")
        return form

    def write(self, params: ClassifyParams, context: RequestContext, outcomes: list[Outcome]) -> HttpAnswer:
        """Write labels and scores, best first; of two classes with one label the better one."""
        [row] = rows_of(params, outcomes)
        scores: dict[str, float] = {}
        for label, score in row:
            scores.setdefault(label, score)
        return HttpAnswer(json.dumps(scores, ensure_ascii=False).encode())


def _error(status: int, code: str, message: str) -> dict[str, object]:
    """Write an error as TorchServe does."""
    name = _TYPES.get(status, "BadRequestException" if status < 500 else "InternalServerException")
    name = "ModelNotFoundException" if code == "unknown_model" else name
    return {"code": status, "type": name, "message": message}


TORCHSERVE_ERRORS = ErrorShape(re.compile(r"/(predictions|models|ping)(/|$)"), _error)
"""Errors of its paths."""
