"""The attacks: requests and calls that anybody may send to a server.

Each has a function that makes its body, which is called before the time begins, and one that sends it and counts the
outcomes.
"""

import asyncio
import contextlib
import http.client
import io
import socket
import struct
import time
import zlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc.aio
import numpy as np

from ...server.oip import grpc_service_pb2
from ..bodies import make_jpeg

MIB = 1 << 20
CLASSES = 21_000
SILENT_CALLS, IDLE_CONNECTIONS, FEW_CONNECTIONS = 1_024, 2_000, 64
LIVEZ_REQUESTS, LIVEZ_PAUSE_SECONDS, SILENT_PAUSE_SECONDS = 20, 0.05, 2.0
JSON = {"Content-Type": "application/json"}
PARTS = {"Content-Type": "multipart/form-data; boundary=b"}
MESSAGES: Any = grpc_service_pb2  # its classes are made when it is imported
INFER = "/inference.GRPCInferenceService/ModelInfer"


@dataclass(frozen=True)
class Target:
    """The addresses of the attacked server."""

    host: str
    port: int
    metrics_port: int
    grpc_port: int

    def ask(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> str:
        """Send one request on a connection of its own; returns the status, or the name of the error."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=120)
        with contextlib.closing(connection):
            try:
                connection.request(method, path, body, headers or {})
                answer = connection.getresponse()
                answer.read()
                return str(answer.status)
            except OSError as error:
                return type(error).__name__


@dataclass(frozen=True)
class Attack:
    """One attack.

    Args:
        run: sends the body to the target and counts the outcomes.
        body: makes the body, before the time begins.
        settings: the server's, where they are not as usual.
        pause_seconds: how long `run` does nothing but wait; these seconds are not the server's.
    """

    run: Callable[[Target, bytes], Counter[str]]
    body: Callable[[], bytes]
    settings: dict[str, Any] = field(default_factory=dict)
    pause_seconds: float = 0.0


def _tiff_bomb() -> bytes:
    """A TIFF that says 100 x 100 px and has one tile of 22,000 x 22,000 px, whose size is of a signed type."""
    side, packer = 22_000, zlib.compressobj(9)
    row = bytes(3 * side)
    data = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    short, long, signed = 3, 4, 9
    tags = [
        *((256, short, 1, 100), (257, short, 1, 100), (258, short, 1, 8), (259, short, 1, 8), (262, short, 1, 2)),
        *((277, short, 1, 3), (284, short, 1, 1), (322, signed, 1, side), (323, signed, 1, side)),
        *((324, long, 1, 8), (325, long, 1, len(data))),
    ]
    table = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return b"II*\0" + struct.pack("<I", 8 + len(data)) + data + struct.pack("<H", len(tags)) + table + bytes(4)


def _npy(shape: tuple[int, ...]) -> bytes:
    out = io.BytesIO()
    np.save(out, np.zeros(shape, np.uint8))
    return out.getvalue()


def _long_string() -> bytes:
    """Numbers of a tensor in JSON with a string of 490 KB among them."""
    numbers = b",".join([b"1"] * 1_001 + [b'"' + b"a" * 490_000 + b'"'])
    tensor = b'{"name": "pixels", "datatype": "UINT8", "shape": [1, 1, 334, 3], "data": [%b]}' % numbers
    return b'{"inputs": [%b]}' % tensor


def _endless_part() -> bytes:
    """A multipart body of 60 MiB whose first part has no end."""
    return b"--b\r\n" + bytes(60 * MIB)


def _empty_parts(size: int) -> bytes:
    """A multipart body of `size` bytes that consists of empty parts."""
    return b"--b\r\n" * (size // 5) + b"--b--"


def _commented_jpeg() -> bytes:
    """A photograph of 19 MiB, nearly all of which is comments."""
    jpeg = make_jpeg(60_000)
    return jpeg[:2] + (b"\xff\xfe\xff\xff" + bytes(65_533)) * 290 + jpeg[2:]


def _large_message() -> bytes:
    """A message of gRPC with one field of raw tensor data."""
    return bytes(MESSAGES.ModelInferRequest(raw_input_contents=[bytes(60 * MIB)]).SerializeToString())


def _parameters() -> bytes:
    """A message of gRPC whose one input has a million parameters, 15 MiB of them."""
    request = MESSAGES.ModelInferRequest()
    parameters = request.inputs.add(name="image").parameters
    for number in range(1_000_000):
        parameters[f"{number:07d}"].bool_param = True
    return bytes(request.SerializeToString())


def _post(
    target: Target,
    body: bytes,
    path: str = "/classify",
    headers: dict[str, str] | None = None,
    times: int = 1,
) -> Counter[str]:
    """Post the body, several times one after the other."""
    return Counter(target.ask("POST", path, body, headers) for _ in range(times))


def _post_six(target: Target, body: bytes) -> Counter[str]:
    """Post the body six times at once, and find how long /metrics takes meanwhile."""
    slowest = 0.0
    with ThreadPoolExecutor(6) as pool:
        posts = [pool.submit(target.ask, "POST", "/classify", body, PARTS) for _ in range(6)]
        while wait(posts, timeout=0.05).not_done:
            began = time.monotonic()
            target.ask("GET", "/metrics")
            slowest = max(slowest, time.monotonic() - began)
    return Counter([post.result() for post in posts] + [f"/metrics took {slowest:.2f} s"])


def _without_bodies(target: Target, head: bytes) -> Counter[str]:
    """Open all connections that the server takes and send the head of a request on each; then others ask /livez."""
    found: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        for _ in range(FEW_CONNECTIONS):
            connection = stack.enter_context(socket.create_connection((target.host, target.port)))
            connection.sendall(head)
        for _ in range(LIVEZ_REQUESTS):
            found[target.ask("GET", "/livez")] += 1
            time.sleep(LIVEZ_PAUSE_SECONDS)
    return found


def _idle_metrics(target: Target, photograph: bytes) -> Counter[str]:
    """Open connections to the metrics port and ask nothing; then others scrape and classify."""
    found: Counter[str] = Counter()
    scraped = Target(target.host, target.metrics_port, 0, 0)
    with contextlib.ExitStack() as stack:
        for _ in range(IDLE_CONNECTIONS):
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_connection((target.host, target.metrics_port), timeout=5))
        for _ in range(5):
            found["scrape " + scraped.ask("GET", "/metrics")] += 1
            found["classify " + target.ask("POST", "/classify", photograph)] += 1
    return found


def _silent_calls(target: Target, message: bytes) -> Counter[str]:
    """Begin calls of gRPC and send nothing on them; then another client makes calls with a message."""

    async def attack() -> Counter[str]:
        address = f"{target.host}:{target.grpc_port}"
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(16)]
        calls = [channel.stream_unary(INFER)() for channel in channels for _ in range(SILENT_CALLS // 16)]
        await asyncio.sleep(SILENT_PAUSE_SECONDS)
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            found: Counter[str] = Counter()
            for _ in range(5):
                with contextlib.suppress(Exception):
                    await channel.unary_unary("/inference.GRPCInferenceService/ServerMetadata")(message, timeout=10)
                    found["answered"] += 1
        for call in calls:
            call.cancel()
        for channel in channels:
            await channel.close()
        return found or Counter({"refused": 5})

    return asyncio.run(attack())


def _calls(target: Target, message: bytes, count: int) -> Counter[str]:
    """Make calls of gRPC with this message, all at once."""
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    with contextlib.ExitStack() as stack:
        address = f"{target.host}:{target.grpc_port}"
        channels = [stack.enter_context(grpc.insecure_channel(address, options=options)) for _ in range(count)]
        calls = [channel.unary_unary(INFER).future(message, timeout=120) for channel in channels]
        return Counter(str(call.code()).removeprefix("StatusCode.") for call in calls)


_WIDE = partial(_post, path=f"/classify?top_k={CLASSES}", headers={"Content-Type": "application/x-npy"})
ATTACKS = {
    "tiff": Attack(_post, _tiff_bomb, {"formats": "jpeg,tiff"}),
    "string": Attack(partial(_post, path="/v2/models/bench/infer", headers=JSON), _long_string),
    "refused": Attack(partial(_post, headers=PARTS, times=30), _endless_part),
    "wide": Attack(_WIDE, partial(_npy, (256, 6, 6, 3))),
    "wide-4": Attack(_WIDE, partial(_npy, (4, 6, 6, 3))),
    "parts": Attack(partial(_post, headers=PARTS), partial(_empty_parts, 60 * MIB)),
    "six-parts": Attack(_post_six, partial(_empty_parts, 24 * MIB)),
    "no-bodies": Attack(
        _without_bodies,
        lambda: b"POST /classify HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n",
        {"max_connections": FEW_CONNECTIONS},
        pause_seconds=LIVEZ_REQUESTS * LIVEZ_PAUSE_SECONDS,
    ),
    "idle-metrics": Attack(_idle_metrics, partial(make_jpeg, 20_000)),
    "large-raw": Attack(partial(_post, times=3), _commented_jpeg),
    "silent-calls": Attack(_silent_calls, bytes, pause_seconds=SILENT_PAUSE_SECONDS),
    "large-calls": Attack(partial(_calls, count=20), _large_message, {"max_held_bytes": 128 * MIB}),
    "parameters": Attack(partial(_calls, count=1), _parameters),
}
