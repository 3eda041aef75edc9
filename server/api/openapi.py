"""What the OpenAPI document says of keys: how to send one, where it is needed, what is answered without."""

from typing import Any

from ..errors import ERROR_CODES
from ..security.auth import Authenticator

_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "Authorization: Bearer KEY"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
_WITHOUT_KEY = {
    "401": "no key, or one that is not known",
    "429": "more than this key may ask; see `Retry-After`",
}
_BROKEN = {
    "408": "the body did not come in time",
    "431": "too many headers, or too long",
}


def add_security(document: dict[str, Any], gate: Authenticator) -> None:
    """Add to a document what the gate and the connections may answer, in place."""
    if gate.needs_key:
        document.setdefault("components", {})["securitySchemes"] = _SCHEMES
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method not in ("get", "post", "put", "delete", "patch", "head", "options"):
                continue
            answers = dict(_BROKEN) if "requestBody" in operation else {}
            if not gate.is_open(path):
                operation["security"] = [{name: []} for name in _SCHEMES]
                answers |= _WITHOUT_KEY
            for status, description in answers.items():
                operation["responses"].setdefault(status, _answer(int(status), description))


def _answer(status: int, description: str) -> dict[str, Any]:
    code = next(code for code, kind in ERROR_CODES.items() if kind.status == status)
    answer: dict[str, Any] = {
        "description": f"{description}; `code` is {code}",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorAnswer"}}},
    }
    if status == 401:
        answer["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
    if status == 429:
        answer["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "seconds"}}
    return answer
