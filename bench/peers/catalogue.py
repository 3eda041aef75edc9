"""The peers: what is installed, how each is started, and the cheapest request that it accepts."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ..load.plan import Shot
from ..load.requests import MULTIPART, base64_json, cut, multipart
from .servers.tiny_vit import SIZE

SERVERS = Path(__file__).parent / "servers"

DEBIAN_PYTHON = Path("/usr/bin/python3.11")
"""Triton's Python backend in nvidia-pytriton is linked to it; it fails under others of the same version."""

Command = Callable[[Path, Path, int, Path], list[str]]
"""Interpreter's folder, weights, port, scratch folder -> the command that serves in the foreground."""


@dataclass(frozen=True)
class Peer:
    """One server under comparison.

    Args:
        requirements: of pip, beside torch and numpy.
        command: starts it.
        path: of the request.
        ready: answers 200 when it can be asked.
        shots: from pixels, uint8 (32, 32, 3), and bodies that are malformed.
        answer: regular expression that finds the class.
        body: what the request is, in words.
        python: that its venv must be made with; None = this one.
        tools: commands that must be there.
        environment: variables that it is started with; {weights} and {port} are filled in.
        settings: its batching, in words.
    """

    name: str
    requirements: Sequence[str]
    command: Command
    path: str
    ready: str
    shots: Callable[[Sequence[np.ndarray]], tuple[Shot, ...]]
    answer: bytes
    body: str
    settings: str
    python: Path | None = None
    tools: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)


def _script(name: str, *more: str) -> Command:
    return lambda bin, weights, port, scratch: [
        *(str(bin / "python"), str(SERVERS / name), str(weights), str(port)),
        *more,
    ]


def _bentoml(bin: Path, weights: Path, port: int, scratch: Path) -> list[str]:
    where = ["--working-dir", str(SERVERS), "--host", "127.0.0.1", "--port", str(port)]
    return [str(bin / "bentoml"), "serve", "bentoml_app:Tiny", *where]


def _torchserve(bin: Path, weights: Path, port: int, scratch: Path) -> list[str]:
    """A script, because the archive must be packed first."""
    return [str(bin / "python"), str(SERVERS / "torchserve_start.py"), str(weights), str(port), str(scratch)]


def _shots(wrap: Callable[[bytes], Shot]) -> Callable[[Sequence[np.ndarray]], tuple[Shot, ...]]:
    """Requests from pictures: their pixels wrapped as a peer takes them, and one whose pixels are cut off."""

    def shots(images: Sequence[np.ndarray]) -> tuple[Shot, ...]:
        broken = replace(wrap(cut(images[0].tobytes())), good=False)
        return (*(wrap(image.tobytes()) for image in images), broken)

    return shots


def _tensor(body: bytes) -> Shot:
    tensor = {"name": "pixels", "shape": [1, SIZE, SIZE, 3], "datatype": "UINT8"}
    head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": len(body)}}]}).encode()
    return Shot(head + body, _BYTES, headers=(("Inference-Header-Content-Length", str(len(head))),))


_BYTES = "application/octet-stream"
_raw = _shots(lambda body: Shot(body, _BYTES))
_multipart = _shots(lambda body: Shot(multipart([body], _BYTES), MULTIPART))
_base64 = _shots(lambda body: Shot(base64_json([body]), "application/json"))
_binary_tensor = _shots(_tensor)

_CLASS = rb'"class":\s*(\d+)'
_TENSOR_CLASS = rb'"data":\s*\[(\d+)'
_TRITON = ("/v2/models/tiny/infer", "/v2/models/tiny/ready", _binary_tensor, _TENSOR_CLASS, "binary tensor")

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            "litserve",
            ("litserve", "python-multipart", "uvloop", "httptools"),
            _script("litserve_app.py"),
            *("/predict", "/health", _multipart, _CLASS, "multipart"),
            "batch 16, 5 ms, fast_queue",
        ),
        Peer(
            "triton",
            ("nvidia-pytriton",),
            _script("triton_app.py"),
            *_TRITON,
            "batch 16, 5 ms, queue as it comes",
            python=DEBIAN_PYTHON,
        ),
        Peer(
            "triton-bounded",
            ("nvidia-pytriton",),
            _script("triton_app.py", "bounded"),
            *_TRITON,
            "batch 16, 5 ms, queue 64, 250 ms REJECT",
            python=DEBIAN_PYTHON,
        ),
        Peer(
            "bentoml",
            ("bentoml",),
            _bentoml,
            *("/classify", "/readyz", _base64, rb"\[(\d+)", "base64 in JSON"),
            "adaptive batching, 16, 1 s",
            environment={"TINY_WEIGHTS": "{weights}", "BENTOML_DO_NOT_TRACK": "True"},
        ),
        Peer(
            "ray",
            ("ray[serve]",),
            _script("ray_app.py"),
            *("/", "/-/healthz", _raw, _CLASS, "raw"),
            "batch 16, 5 ms, one replica",
            environment={"RAY_USAGE_STATS_ENABLED": "0"},
        ),
        Peer(
            "torchserve",
            ("torchserve", "torch-model-archiver", "pyyaml", "setuptools"),
            _torchserve,
            *("/predictions/tiny", "/ping", _raw, _CLASS, "raw"),
            "batch 16, 5 ms, one worker",
            tools=("java",),
        ),
    )
}

VENVS = {"triton-bounded": "triton"}
"""Peers that share another's environment."""
