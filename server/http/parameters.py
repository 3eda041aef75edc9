"""Reads the parameters of a classify request, which count alike in its URL, in a form and in JSON."""

from collections.abc import Sequence
from urllib.parse import parse_qsl

from ..errors import ServiceError, no_such

PARAMETERS = ("model", "top_k", "threshold", "embedding", "head")


def read_query(query: bytes, known: Sequence[str] = PARAMETERS) -> dict[str, str]:
    """The parameters in a URL, of those that are known. Raises ServiceError `bad_request`."""
    if not query:
        return {}
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, max_num_fields=16)
    except ValueError:
        raise ServiceError("bad_request", "the query is not key=value pairs, at most 16") from None
    return read_pairs(pairs, "parameter", known)


def read_pairs(pairs: Sequence[tuple[str, str]], kind: str, known: Sequence[str] = PARAMETERS) -> dict[str, str]:
    """The values by name. `kind`: what the request calls them, for a message. Raises ServiceError `bad_request` for a
    name that does not exist or is given twice."""
    values: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            raise no_such(kind, name, known)
        if name in values:
            raise ServiceError("bad_request", f"{kind} {name} is given twice")
        values[name] = value
    return values


def read_choice(name: str, text: str | None, choices: Sequence[str]) -> str:
    """One of a few words, of which the first counts where none is sent. Raises ServiceError `bad_request`."""
    if text is not None and text not in choices:
        raise ServiceError("bad_request", f"{name} is {text[:40]!r}: expected {' or '.join(choices)}")
    return text or choices[0]


def joined(query: dict[str, str], body: dict[str, str]) -> dict[str, str]:
    """The parameters of a whole request. Raises ServiceError `bad_request` where its body contradicts its URL."""
    for name in query.keys() & body.keys():
        if query[name] != body[name]:
            said = f"{query[name][:40]!r} in the URL and {body[name][:40]!r} in the body"
            raise ServiceError("bad_request", f"{name} is {said}")
    return query | body
