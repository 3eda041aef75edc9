"""Names the protocols of other servers, and reads what Vertex AI says of its paths and port in the environment."""

import re
from collections.abc import Mapping
from typing import NamedTuple

COMPAT = ("torchserve", "kserve-v1", "sagemaker", "vertex")
"""The protocols, as the setting `compat` names them."""

PING = "/ping"
"""Where TorchServe and SageMaker ask whether to send traffic."""

READY = frozenset({"/readyz", "/health", "/v2/health/ready"})
"""Our own paths that answer this."""

VERTEX_PORT = "AIP_HTTP_PORT"
_HEALTH, _PREDICT = "AIP_HEALTH_ROUTE", "AIP_PREDICT_ROUTE"
_PATH = re.compile(r"(/[A-Za-z0-9._~:@-]+)+")


class VertexPaths(NamedTuple):
    """Where Vertex AI asks whether to send traffic, and where it sends it."""

    health: str
    predict: str


def vertex_paths(environment: Mapping[str, str]) -> VertexPaths:
    """The paths in the environment of a container of Vertex AI. Raises ValueError where one is missing or no path."""
    paths = [environment.get(name, "") for name in VertexPaths(_HEALTH, _PREDICT)]
    for name, path in zip((_HEALTH, _PREDICT), paths, strict=True):
        if not _PATH.fullmatch(path):
            said = f"{name} = {path[:80]!r} is no path such as /predict" if path else f"{name} is not set"
            raise ValueError(f"compat = vertex: {said}; Vertex AI sets it in its containers")
    if paths[0] == paths[1]:
        raise ValueError(f"compat = vertex: {_HEALTH} and {_PREDICT} are both {paths[0]}")
    return VertexPaths(*paths)


def vertex_port(environment: Mapping[str, str], port: str | None) -> str | None:
    """The port in the environment of a container of Vertex AI; None where there is none. `port`: that of the settings,
    where they have one. Raises ValueError where it is no port or another one."""
    text = environment.get(VERTEX_PORT)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= 65535):
        raise ValueError(f"{VERTEX_PORT} = {text[:40]!r}: must be a whole number 1..65535")
    if port not in (None, text):
        raise ValueError(f"port = {port} and {VERTEX_PORT} = {text}: Vertex AI asks on the latter, set no port")
    return text


def open_paths(compat: str, environment: Mapping[str, str]) -> set[str]:
    """The paths of probes, which need no key, that a value of the setting adds. Raises ValueError as `vertex_paths`."""
    named = compat.split(",")
    pings = {PING} if {"torchserve", "sagemaker"} & {*named} else set()
    return pings | ({vertex_paths(environment).health} if "vertex" in named else set())
