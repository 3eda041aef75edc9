"""What requests leave in memory: a refused one nothing, an answered one its answer until it is read."""

import io
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from milkweed.bench.ports import free_port
from milkweed.models import load_bundle
from milkweed.models.bundle.bundle import save_bundle
from milkweed.models.bundle.labels import Label

from ...support.waiting import HANG_SECONDS, eventually
from .raw_client import dial

MIB = 1 << 20
BODY = 24 * MIB

# Reference cycles are for the cyclic collector, which comes when it comes: nothing large may wait for it.
NO_COLLECTOR = "import gc; gc.disable(); gc.enable = lambda: None;"


@pytest.fixture(scope="module")
def uncollected(serving: Any) -> Iterator[Any]:
    """A server without the cyclic collector, and what its process holds."""
    ports = {"metrics_port": free_port(), "grpc_port": free_port()}
    with serving(prelude=NO_COLLECTOR, **ports) as server:
        server.wait_ready()
        process = psutil.Process(server.process.pid)
        server.metrics_url = f"http://127.0.0.1:{ports['metrics_port']}"
        yield SimpleNamespace(
            server=server, url=server.url, grpc_port=ports["grpc_port"], rss=lambda: process.memory_info().rss
        )


@pytest.mark.parametrize(
    ("path", "headers", "body"),
    [
        ("/classify", {"content-type": "multipart/form-data; boundary=b"}, b"--b\r\n" + bytes(BODY)),
        ("/classify", {"content-type": "application/json"}, b'{"images": "' + b"A" * BODY + b'"}'),
        ("/classify?top_k=2", {"content-type": "application/x-npy"}, b"\x93NUMPY\x01\x00v\x00" + bytes(BODY)),
        ("/v2/models/tiny/infer", {}, b'{"inputs": [{"name": "image", "data": ["' + b"A" * BODY + b'"]}]}'),
        ("/v2/models/tiny/infer", {"inference-header-content-length": "2"}, b"{}" + bytes(BODY)),
    ],
    ids=["multipart", "json", "npy", "oip-json", "oip-binary"],
)
@pytest.mark.slow_beyond(1)
def test_a_refused_body_is_gone_when_its_answer_is(
    uncollected: Any, path: str, headers: dict[str, str], body: bytes
) -> None:
    """Thirty of them left 2.9 GB, while nothing of it counted as held."""
    with httpx.Client(base_url=uncollected.url) as client:
        client.post(path, content=body, headers=headers)
        before = uncollected.rss()
        for _ in range(12):
            answer = client.post(path, content=body, headers=headers)
            assert answer.status_code in (400, 413, 422), answer.text
        assert uncollected.rss() - before < 5 * BODY
    assert uncollected.server.metric("milkweed_http_buffered_body_bytes", uncollected.server.metrics_url) == 0


def test_a_refused_message_is_gone_when_its_answer_is(uncollected: Any) -> None:
    grpc = pytest.importorskip("grpc")
    size = 10 * MIB
    # raw_input_contents without an input.
    message = b"\x3a" + bytes([(size >> shift & 127) | 128 for shift in (0, 7, 14)] + [size >> 21]) + bytes(size)
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{uncollected.grpc_port}", options=options) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        before = 0
        for turn in range(20):
            with pytest.raises(grpc.RpcError):
                call(message, timeout=HANG_SECONDS)
            before = before or (uncollected.rss() if turn == 2 else 0)
        assert uncollected.rss() - before < 5 * size
    assert uncollected.server.metric("milkweed_http_buffered_body_bytes", uncollected.server.metrics_url) == 0


def test_an_answer_is_held_until_it_is_read(serving: Any, tiny_bundle: Path, tmp_path: Path) -> None:
    """A client that reads nothing could otherwise have as many answers made as it likes."""
    model, config = load_bundle(tiny_bundle)
    labels = [Label(str(place), "long " * 200) for place in range(config.num_classes)]
    save_bundle(tmp_path / "wordy", model, replace(config, files={}), labels)
    array = io.BytesIO()
    np.save(array, np.zeros((256, 8, 8, 3), np.uint8))
    body, port = array.getvalue(), free_port()
    with serving(bundles={"wordy": tmp_path / "wordy"}, metrics_port=port) as server:
        server.wait_ready()
        held = partial(server.metric, "milkweed_http_buffered_body_bytes", f"http://127.0.0.1:{port}")
        length = len(httpx.post(server.url + "/classify?top_k=10", content=body).content)
        assert length > 2 * MIB
        with dial(server.url) as client:
            for _ in range(8):  # the sockets' own buffers take a few, which are no longer ours
                client.sendall(
                    b"POST /classify?top_k=10 HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-npy\r\n"
                    b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
                )
            eventually(lambda: length <= held() < length + 100)
            read = 0
            while read < 8 * length:
                read += len(client.recv(1 << 20))
        eventually(lambda: held() == 0)
