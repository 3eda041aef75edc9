"""Describes the REST paths of the Open Inference Protocol for the OpenAPI document: the fields that are promised."""

import re
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel, Field
from starlette.routing import BaseRoute, Route

_PARAMETERS = Field(default=None, description="docs/oip.md has all")


class OipError(BaseModel):
    """Every error of the protocol's paths."""

    error: str


class OipTensor(BaseModel):
    """A tensor of a request or an answer; in binary, `parameters` has `binary_data_size` and `data` is missing."""

    name: str = Field(examples=["image"])
    datatype: str = Field(examples=["BYTES"])
    shape: list[int] = Field(examples=[[1]])
    parameters: dict[str, Any] | None = _PARAMETERS
    data: list[Any] | None = Field(default=None, description="in row-major order; BYTES of an input are base64")


class OipOutput(BaseModel):
    """An output that a request asks for."""

    name: Literal["label", "index", "score", "probabilities", "error"]
    parameters: dict[str, Any] | None = _PARAMETERS


class OipRequest(BaseModel):
    """Images to classify: exactly one input, `image` or `pixels`."""

    id: str | None = None
    inputs: list[OipTensor]
    outputs: list[OipOutput] | None = Field(default=None, description="label, index and score where none is named")
    parameters: dict[str, Any] | None = _PARAMETERS


class OipAnswer(BaseModel):
    """The outputs of a request, a row an image."""

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[OipTensor]


class OipServer(BaseModel):
    """What the server is."""

    name: str
    version: str
    extensions: list[str]


class OipModel(BaseModel):
    """What a model takes and gives."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[OipTensor]
    outputs: list[OipTensor]


class OipIndexRequest(BaseModel):
    """The body of a request for the index: which models it lists."""

    ready: bool = Field(default=False, description="those alone that are ready")


class OipIndexEntry(BaseModel):
    """A model, and whether it is ready."""

    name: str
    version: str
    state: Literal["READY", "LOADING", "UNAVAILABLE"]
    reason: str


OIP_SCHEMAS: tuple[type[BaseModel], ...] = (
    *(OipError, OipTensor, OipOutput, OipRequest, OipAnswer),
    *(OipServer, OipModel, OipIndexRequest, OipIndexEntry),
)

# What a path ends in: its summary, the schema of the answer where there is one, and of the body.
_PATHS: dict[str, tuple[str, type[BaseModel] | None, type[BaseModel] | None]] = {
    "/v2": ("Server metadata", OipServer, None),
    "/live": ("As /livez", None, None),
    "/health/ready": ("As /readyz", None, None),
    "/index": ("Every model, and whether it is ready", OipIndexEntry, OipIndexRequest),
    "/ready": ("Whether a model is ready", None, None),
    "/config": ("A model's configuration, as Triton has it", None, None),
    "/stats": ("Statistics, as Triton has them", None, None),
    "/infer": ("Classify images", OipAnswer, OipRequest),
    "": ("Model metadata", OipModel, None),
}


def oip_paths(routes: Iterable[BaseRoute]) -> dict[str, Any]:
    """Describe the routes of the protocol among those of an app, with references to OIP_SCHEMAS."""
    return {
        route.path: {method.lower(): _operation(route.path)}
        for route in routes
        if isinstance(route, Route) and route.path.startswith("/v2")
        for method in sorted((route.methods or set()) - {"HEAD"})
    }


def path_parameters(path: str) -> list[dict[str, Any]]:
    """Describe the parameters in a path."""
    names = re.findall(r"{(\w+)}", path)
    return [{"in": "path", "name": name, "required": True, "schema": {"type": "string"}} for name in names]


def _operation(path: str) -> dict[str, Any]:
    summary, answer, body = next(said for end, said in _PATHS.items() if path.endswith(end))
    schema: dict[str, Any] = _reference(answer) if answer else {"type": "object"}
    if answer is OipIndexEntry:
        schema = {"type": "array", "items": schema}
    operation: dict[str, Any] = {
        "tags": ["oip"],
        "summary": summary,
        "operationId": "oip" + re.sub(r"\W+", "_", path.removeprefix("/v2")).rstrip("_"),
        "responses": {"200": _json("", schema), "default": _json("an error", _reference(OipError))},
    }
    if parameters := path_parameters(path):
        operation["parameters"] = parameters
    if body:
        operation["requestBody"] = {"required": body is OipRequest, **_json("", _reference(body))}
    if body is OipRequest:
        for part in (operation["requestBody"], operation["responses"]["200"]):
            part["content"]["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
    return operation


def _reference(schema: type[BaseModel]) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{schema.__name__}"}


def _json(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
