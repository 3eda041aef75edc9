"""The peers: what is installed, the cheapest request that each accepts, and a peer as a running process."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ..load.plan import Shot
from ..load.requests import MULTIPART, base64_json, cut, multipart
from ..ports import free_port
from ..process import running_process
from .servers.tiny_vit import SIZE

SERVERS = Path(__file__).parent / "servers"

DEBIAN_PYTHON = "/usr/bin/python3.11"
"""Triton's Python backend in nvidia-pytriton is linked to it; it fails under others of the same version."""

SHARED = (
    *("--extra-index-url", "https://download.pytorch.org/whl/cpu", "torch==2.13.0+cpu"),
    *("numpy", "openvino==2026.4.1", "pillow"),
)
STAMP = "installed.txt"
END_SECONDS = 10.0
OURS = ("PYTHON", "MILKWEED_", "VIRTUAL_ENV")  # beginnings of variables that a peer does not get

BYTES = "application/octet-stream"


def _tensor(body: bytes, shape: Sequence[int] = (1, SIZE, SIZE, 3), datatype: str = "UINT8") -> Shot:
    tensor = {"name": "image", "shape": shape, "datatype": datatype}
    head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": len(body)}}]}).encode()
    return Shot(head + body, BYTES, headers=(("Inference-Header-Content-Length", str(len(head))),))


BODIES: dict[str, Callable[[bytes], Shot]] = {
    "raw": lambda body: Shot(body, BYTES),
    "multipart": lambda body: Shot(multipart([body], BYTES), MULTIPART),
    "base64 in JSON": lambda body: Shot(base64_json([body]), "application/json"),
    "binary tensor": _tensor,
}


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One server under comparison.

    Args:
        requirements: of pip, beside those that all have; the first is the peer's own package.
        command: starts it; {bin}, {servers}, {port} and {scratch} are filled in, as in `environment`.
        ready: path that answers 200 when it can be asked.
        body: one of BODIES.
        answer: regular expression that finds the class.
        settings: its batching, in words.
        venv: the environment's name, where it is not the peer's.
    """

    name: str
    requirements: Sequence[str]
    command: str = "{bin}/python {servers}/{name}_app.py {port}"
    path: str
    ready: str
    body: str
    answer: bytes = rb'"class":\s*(\d+)'
    settings: str
    python: str = sys.executable
    environment: dict[str, str] = field(default_factory=dict)
    venv: str = ""

    def shots(self, images: Sequence[np.ndarray]) -> tuple[Shot, ...]:
        """Requests with the pixels of pictures, uint8 (32, 32, 3), and a malformed one whose pixels are cut off."""
        wrap = BODIES[self.body]
        broken = replace(wrap(cut(images[0].tobytes())), good=False)
        return (*(wrap(image.tobytes()) for image in images), broken)

    def photo_shots(self, photos: Sequence[bytes]) -> tuple[Shot, ...]:
        """Requests with encoded photographs, all good."""
        if self.body == "binary tensor":  # its strings begin with their length
            return tuple(_tensor(len(photo).to_bytes(4, "little") + photo, (1, 1), "BYTES") for photo in photos)
        return tuple(BODIES[self.body](photo) for photo in photos)

    def home(self, venvs: Path) -> Path:
        """The folder of its environment."""
        return venvs / (self.venv or self.name)

    def install(self, venvs: Path) -> None:
        """Make its environment; do nothing where it is complete.

        Raises:
            CalledProcessError: pip failed; its words are in `stderr`.
            OSError: the interpreter that it needs is not there.
        """
        home = self.home(venvs)
        if (home / STAMP).exists():
            return
        # Our own variables would lead the foreign interpreter to our packages.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

        def call(*command: str) -> str:
            return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout

        pip = (str(home / "bin" / "python"), "-m", "pip")
        call(self.python, "-m", "venv", str(home))
        call(*pip, "install", *SHARED)
        call(*pip, "install", *self.requirements)
        (home / STAMP).write_text(call(*pip, "freeze"))

    def version(self, venvs: Path) -> str | None:
        """The installed version of its own package; None where it is not installed."""
        file, package = self.home(venvs) / STAMP, self.requirements[0].partition("[")[0]
        if not file.exists():
            return None
        frozen = (line.lower().replace("_", "-").partition("==") for line in file.read_text().splitlines())
        return {name: version for name, _, version in frozen}.get(package, "unknown")


_TRITON = Peer(
    name="triton",
    requirements=("nvidia-pytriton",),
    path="/v2/models/served/infer",
    ready="/v2/models/served/ready",
    body="binary tensor",
    answer=rb'"data":\s*\[(\d+)',
    settings="batch 16, 5 ms, queue as it comes",
    python=DEBIAN_PYTHON,
)

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            name="litserve",
            requirements=("litserve", "python-multipart", "uvloop", "httptools"),
            path="/predict",
            ready="/health",
            body="multipart",
            settings="batch 16, 5 ms, fast_queue",
        ),
        _TRITON,
        replace(
            _TRITON,
            name="triton-bounded",
            command="{bin}/python {servers}/triton_app.py {port} bounded",
            settings="batch 16, 5 ms, queue 64, 250 ms REJECT",
            venv="triton",
        ),
        Peer(
            name="bentoml",
            requirements=("bentoml",),
            command="{bin}/bentoml serve bentoml_app:Served --working-dir {servers} --host 127.0.0.1 --port {port}",
            path="/classify",
            ready="/readyz",
            body="base64 in JSON",
            answer=rb"\[(\d+)",
            settings="adaptive batching, 16, 1 s",
            environment={"BENTOML_DO_NOT_TRACK": "True"},
        ),
        Peer(
            name="ray",
            requirements=("ray[serve]",),
            path="/",
            ready="/-/healthz",
            body="raw",
            settings="batch 16, 5 ms, one replica",
            environment={"RAY_USAGE_STATS_ENABLED": "0"},
        ),
        Peer(
            name="torchserve",  # it needs Java
            requirements=("torchserve", "torch-model-archiver", "pyyaml", "setuptools"),
            command="{bin}/python {servers}/torchserve_start.py {port} {scratch}",
            path="/predictions/served",
            ready="/ping",
            body="raw",
            settings="batch 16, 5 ms, one worker",
        ),
    )
}


@contextmanager
def running_peer(
    peer: Peer, venvs: Path, model: Path, device_ms: float = 0.0, cache: Path | None = None
) -> Iterator[tuple[int, str]]:
    """Yield its first process and its URL, once it is ready.

    Args:
        model: a state dict of the tiny ViT, or a bundle whose graph is computed by OpenVINO.
        device_ms: that a batch of the tiny ViT takes besides.
        cache: folder for compiled graphs.

    Raises:
        RuntimeError: it did not start in START_SECONDS; with the last that it said.
    """
    port, bin = free_port(following=2), peer.home(venvs) / "bin"  # some serve gRPC and metrics as well
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        places = {"name": peer.name, "bin": bin, "servers": SERVERS, "port": port}
        places["scratch"] = scratch
        environment = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        environment |= {"PATH": f"{bin}:{environment.get('PATH', '')}", "OMP_NUM_THREADS": "1", "TMPDIR": scratch}
        environment |= {"PEER_MODEL": str(model.resolve()), "TINY_DEVICE_MS": str(device_ms)}
        environment |= {"PEER_CACHE": str(cache.resolve())} if cache else {}
        environment |= {name: value.format(**places) for name, value in peer.environment.items()}
        command = [part.format(**places) for part in peer.command.split()]
        options = {"cwd": scratch, "env": environment, "start_new_session": True}
        failure = f"{peer.name} did not start"
        with running_process(command, url + peer.ready, failure, END_SECONDS, **options) as process:
            yield process.pid, url
