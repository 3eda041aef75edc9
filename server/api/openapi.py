"""Makes the OpenAPI document: FastAPI's, the entries of plain ASGI routes (POST /classify, /v2, other servers'
protocols), those of the admin API, and API keys."""

import re
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.routing import BaseRoute, Route

from ..config.compat import COMPAT
from ..config.settings import Settings
from ..errors import ERROR_CODES
from ..scheduler.request import PRIORITIES
from ..security.auth import Authenticator
from . import schemas
from .openapi_embed import EMBED_SCHEMAS, embed_paths
from .openapi_oip import OIP_SCHEMAS, oip_paths, path_parameters

_DOCUMENTED: tuple[type[BaseModel], ...] = (
    schemas.ClassifyAnswer,
    schemas.ClassifyFailure,
    schemas.ClassifyJson,
    schemas.ErrorAnswer,
    *OIP_SCHEMAS,
)

_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "Authorization: Bearer KEY"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
_WITHOUT_KEY = {"401": "no key, or one that is not known", "429": "more than this key may ask; see `Retry-After`"}
_BROKEN = {"408": "the body did not come in time", "431": "too many headers, or too long"}

_ERROR = {"$ref": "#/components/schemas/ErrorAnswer"}
_RETRY_AFTER = {"Retry-After": {"schema": {"type": "integer"}, "description": "seconds"}}
_HEADERS: dict[int, dict[str, Any]] = {
    401: {"WWW-Authenticate": {"schema": {"type": "string"}}},
    429: _RETRY_AFTER,
    503: _RETRY_AFTER,
}

_STATUSES = {
    400: "malformed request, no image, or a bad parameter",
    404: "no such model or head",
    413: "a body, an image or a number of images above its limit, which the message names",
    415: "not an accepted image or body",
    422: "an image that is broken or cut off",
    500: "a fault of the server; the log has it under the request id",
    502: "an image that could not be fetched from its URL",
    503: "loading, draining or too busy; see `Retry-After`",
    504: "no answer in time",
}

_ANSWER = {
    "model": "demo",
    "version": "3f2a91c04b7d",
    "request_id": "9f0c5a4c3e1b4d6e8a7f2b1c0d9e8f7a",
    "results": [
        {"predictions": [{"index": 5, "id": "dog", "label": "dog", "score": 0.93}]},
        {"error": {"code": "undecodable", "message": "image 1: JPEG of 640x480 px: broken or cut off"}},
    ],
}

_SHARE = {"type": "number", "minimum": 0, "maximum": 1}
_EMBEDDING = {"type": "string", "enum": ["false", "true", "base64"], "default": "false"}

_DESCRIPTION = """Classes of one image or several, best first.

| body | |
|---|---|
| `image/*` or `application/octet-stream` | one image, raw: the fast path: `curl --data-binary @dog.jpg URL` |
| `application/x-npy` | a numpy array: uint8 (H, W, 3) is a picture, float32 or float16 (3, S, S) a model's input |
| `multipart/form-data` | every file part is an image, in order: `curl -F image=@dog.jpg -F top_k=3 URL` |
| `application/json` | `{"images": ["<base64 or URL>", ...], "top_k": 3}` |

`model`, `top_k`, `threshold`, `embedding` and `head` count in the URL, as fields of a form and as members of the
JSON; all else is refused.

An image that fails is an error in its own place and touches no other. The status is 200 while any image
succeeded, else the first one's. JPEG, PNG, WebP and NPY are accepted, wherever an image may be, and BMP, TIFF, PPM,
GIF, AVIF and JPEG 2000 where the server's setting `formats` names them; of animations the first frame. An array with
a batch axis in front, (n, H, W, 3) or (n, 3, S, S), is n images. `https:` URLs are fetched from the hosts that the
server's setting `fetch_hosts` names, none by default.
`Server-Timing` tells the milliseconds of every stage. With `Accept: application/x-ndjson` the answer is a line for each
image, as soon as it is done, and a last one that tells that it is whole."""


def openapi_document(
    app: FastAPI, admin: Sequence[BaseRoute], settings: Settings, auth: Authenticator
) -> dict[str, Any]:
    """Make FastAPI's document once, with the plain routes, those of the admin API and the keys in it."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        classify = _classify_path(settings)
        paths = {"/classify": classify, **embed_paths(classify["post"]), **document["paths"]}
        paths |= {**oip_paths(app.routes), **_compat_paths(app.routes)}
        document["paths"] = paths | _admin_paths(admin, settings.admin_port)
        _, definitions = models_json_schema(
            [(model, "serialization") for model in (*_DOCUMENTED, *EMBED_SCHEMAS)],
            ref_template="#/components/schemas/{model}",
        )
        document.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
        _add_security(document, auth)
        app.openapi_schema = document
    return app.openapi_schema


def _classify_path(settings: Settings) -> dict[str, Any]:
    """Describe POST /classify, with references to the schemas of `schemas.py`."""
    return {
        "post": {
            "tags": ["classify"],
            "summary": "Classify images",
            "description": _DESCRIPTION,
            "operationId": "classify",
            "parameters": _parameters(settings),
            "requestBody": {"required": True, "content": _bodies(settings)},
            "responses": {"200": _success(), **{str(s): _failure(s, text) for s, text in _STATUSES.items()}},
        }
    }


def _compat_paths(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """Name the routes of other servers' protocols, which docs/compat.md describes."""
    answers = {"200": {"description": ""}, "default": {"description": "an error, in the shape of the protocol"}}
    return {
        route.path: {
            method.lower(): {
                "tags": [route.name],
                "summary": f"A path of {route.name}: docs/compat.md",
                "operationId": re.sub(r"\W+", "_", f"{method.lower()}{route.path}"),
                "parameters": path_parameters(route.path),
                "responses": answers,
            }
            for method in sorted((route.methods or set()) - {"HEAD"})
        }
        for route in routes
        if isinstance(route, Route) and route.name in COMPAT
    }


def _admin_paths(routes: Sequence[BaseRoute], port: int) -> dict[str, Any]:
    """Describe the admin API, which answers on a port of its own. `port`: 0 where it is off, as it is by default."""
    paths: dict[str, Any] = get_openapi(title="", version="", routes=routes)["paths"]
    server = {"url": f"http://localhost:{port or 8002}", "description": "the admin API, where --admin-port is set"}
    detail = {"error": {"$ref": "#/components/schemas/ErrorDetail"}}
    error = {"schema": {"type": "object", "properties": detail, "required": ["error"]}}
    for operation in (operation for item in paths.values() for operation in item.values()):
        operation |= {"tags": ["admin"], "servers": [server]}
        operation["responses"] = {
            "200": operation["responses"]["200"],
            "default": {"description": "an error; its `code` says which", "content": {"application/json": error}},
        }
    return paths


def _parameters(settings: Settings) -> list[dict[str, Any]]:
    text = {"type": "string"}
    top_k = {"type": "integer", "minimum": 1, "default": settings.top_k}
    timeout = {"type": "integer", "minimum": 1, "maximum": settings.max_timeout_ms, "default": settings.timeout_ms}
    priority = {**text, "enum": list(PRIORITIES), "default": PRIORITIES[0]}
    rows = (
        ("query", "model", "which of the served models, or an alias; default: the first", text),
        ("query", "top_k", "classes of an answer, at most the model's number of classes", top_k),
        ("query", "threshold", "least score of an answer's classes, of which there may then be none", _SHARE),
        ("query", "embedding", "answers have the image's embedding too", _EMBEDDING),
        ("query", "head", "a head of the model, which answers from the embedding in its place", text),
        ("header", "X-Request-ID", "comes back; made where it is missing or odd", text),
        ("header", "X-Request-Timeout-Ms", "milliseconds after which the answer is of no use", timeout),
        ("header", "X-Priority", "bulk lets interactive requests go first", priority),
        ("header", "X-Model-Version", "its number or hash; default: the newest", text),
    )
    return [
        {"in": where, "name": name, "required": False, "description": description, "schema": schema}
        for where, name, description, schema in rows
    ]


def _bodies(settings: Settings) -> dict[str, Any]:
    binary = {"type": "string", "format": "binary"}
    files = {"type": "array", "items": binary, "minItems": 1, "maxItems": settings.max_images_per_request}
    form = {
        "image": files,
        "model": {"type": "string"},
        "top_k": {"type": "integer", "minimum": 1},
        "threshold": _SHARE,
        "embedding": _EMBEDDING,
        "head": {"type": "string"},
    }
    return {
        "image/*": {"schema": binary},
        "application/octet-stream": {"schema": binary},
        "application/x-npy": {"schema": binary},
        "multipart/form-data": {"schema": {"type": "object", "properties": form, "required": ["image"]}},
        "application/json": {"schema": {"$ref": "#/components/schemas/ClassifyJson"}},
    }


def _success() -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/ClassifyAnswer"}
    return {
        "description": "at least one image succeeded",
        "headers": {
            "X-Request-ID": {"schema": {"type": "string"}},
            "Server-Timing": {"schema": {"type": "string"}, "example": "receive;dur=0.310, parse;dur=0.042"},
        },
        "content": {"application/json": {"schema": schema, "example": _ANSWER}},
    }


def _failure(status: int, description: str) -> dict[str, Any]:
    """Describe a failure of POST /classify."""
    shapes = [_ERROR]
    if status in (400, 413, 415, 422, 500, 502):
        shapes.append({"$ref": "#/components/schemas/ClassifyFailure"})
    error = {"code": _codes(status)[-1], "message": description}
    example = {"error": error, "request_id": _ANSWER["request_id"]}
    return _refusal(status, description, {"schema": {"anyOf": shapes}, "example": example})


def _codes(status: int) -> list[str]:
    return [code for code, kind in ERROR_CODES.items() if kind.status == status]


def _add_security(document: dict[str, Any], auth: Authenticator) -> None:
    """Add what the authenticator and the connections may answer to a document, in place."""
    if auth.needs_key:
        document.setdefault("components", {})["securitySchemes"] = _SCHEMES
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method not in ("get", "post", "put", "delete", "patch", "head", "options"):
                continue
            answers = dict(_BROKEN) if "requestBody" in operation else {}
            if not auth.is_open(path):
                operation["security"] = [{name: []} for name in _SCHEMES]
                answers |= _WITHOUT_KEY
            if "default" in operation["responses"]:  # which has them all
                continue
            for status, description in answers.items():
                operation["responses"].setdefault(status, _refusal(int(status), description, {"schema": _ERROR}))


def _refusal(status: int, description: str, content: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "description": f"{description}; `code` is {' or '.join(_codes(status))}",
        "content": {"application/json": content},
    }
    return {**answer, "headers": _HEADERS[status]} if status in _HEADERS else answer
