"""The attacks: requests and calls that anybody may send, each as a function that returns what became of them."""

import asyncio
import contextlib
import http.client
import io
import socket
import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np

from ..http_overhead import make_jpeg

MIB = 1 << 20
CLASSES = 21_000
SILENT_CALLS, IDLE_CONNECTIONS, FEW_CONNECTIONS = 1_024, 2_000, 64
JSON = {"Content-Type": "application/json"}
PARTS = {"Content-Type": "multipart/form-data; boundary=b"}
INFER = "/inference.GRPCInferenceService/ModelInfer"


@dataclass(frozen=True)
class Target:
    """Where the attacked server listens."""

    host: str
    port: int
    metrics_port: int
    grpc_port: int

    def ask(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> str:
        """The status of one request on a connection of its own, or what went wrong."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=120)
        with contextlib.closing(connection):
            try:
                connection.request(method, path, body, headers or {})
                answer = connection.getresponse()
                answer.read()
                return str(answer.status)
            except OSError as error:
                return type(error).__name__

    def several(self, count: int, *request: Any) -> Counter[str]:
        """The statuses of equal requests that come at the same time."""
        found: Counter[str] = Counter()
        threads = [threading.Thread(target=lambda: found.update([self.ask(*request)])) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found


@dataclass(frozen=True)
class Attack:
    """One attack: `run` returns the outcomes of its requests."""

    run: Callable[[Target], Counter[str]]
    settings: dict[str, Any] = field(default_factory=dict)


@cache
def tiff_bomb() -> bytes:
    """A picture of 100 x 100 px in one tile of 22,000 x 22,000 px, whose size has a signed type (defect 1)."""
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


def _tiff(target: Target) -> Counter[str]:
    return Counter([target.ask("POST", "/classify", tiff_bomb())])


def _string(target: Target) -> Counter[str]:
    numbers = b",".join([b"1"] * 1_001 + [b'"' + b"a" * 490_000 + b'"'])
    tensor = b'{"name": "pixels", "datatype": "UINT8", "shape": [1, 1, 334, 3], "data": [%b]}' % numbers
    return Counter([target.ask("POST", "/v2/models/bench/infer", b'{"inputs": [%b]}' % tensor, JSON)])


def _refused(target: Target) -> Counter[str]:
    body = b"--b\r\n" + bytes(60 * MIB)
    return Counter(target.ask("POST", "/classify", body, PARTS) for _ in range(30))


def _wide(target: Target, images: int = 256) -> Counter[str]:
    body = _npy((images, 6, 6, 3))
    return Counter([target.ask("POST", f"/classify?top_k={CLASSES}", body, {"Content-Type": "application/x-npy"})])


def _parts(target: Target) -> Counter[str]:
    body = b"--b\r\n" * (60 * MIB // 5) + b"--b--"
    return Counter([target.ask("POST", "/classify", body, PARTS)])


def _six_parts(target: Target) -> Counter[str]:
    """And how long /metrics takes meanwhile."""
    body = b"--b\r\n" * (24 * MIB // 5) + b"--b--"
    found: Counter[str] = Counter()
    attack = threading.Thread(target=lambda: found.update(target.several(6, "POST", "/classify", body, PARTS)))
    attack.start()
    slowest = 0.0
    while attack.is_alive():
        began = time.monotonic()
        target.ask("GET", "/metrics")
        slowest = max(slowest, time.monotonic() - began)
        attack.join(0.05)
    return found + Counter({f"/metrics took {slowest:.2f} s": 1})


def _no_bodies(target: Target) -> Counter[str]:
    """As many as may be connected announce a body and send none; then somebody else comes."""
    head = b"POST /classify HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
    found: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        for _ in range(FEW_CONNECTIONS):
            connection = stack.enter_context(socket.create_connection((target.host, target.port)))
            connection.sendall(head)
        for _ in range(20):
            found[target.ask("GET", "/livez")] += 1
            time.sleep(0.05)
    return found


def _idle_metrics(target: Target) -> Counter[str]:
    """Connections to the metrics port that ask nothing; then somebody scrapes, and somebody classifies."""
    found: Counter[str] = Counter()
    scraped = Target(target.host, target.metrics_port, 0, 0)
    with contextlib.ExitStack() as stack:
        for _ in range(IDLE_CONNECTIONS):
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_connection((target.host, target.metrics_port), timeout=5))
        for _ in range(5):
            found["scrape " + scraped.ask("GET", "/metrics")] += 1
            found["classify " + target.ask("POST", "/classify", make_jpeg(20_000))] += 1
    return found


def _large_raw(target: Target) -> Counter[str]:
    """A photograph of 19 MiB, nearly all of it restart markers between progressive scans."""
    jpeg = make_jpeg(60_000)
    body = jpeg[:2] + (b"\xff\xfe\xff\xff" + bytes(65_533)) * 290 + jpeg[2:]
    return Counter(target.ask("POST", "/classify", body) for _ in range(3))


def _silent_calls(target: Target) -> Counter[str]:
    """Calls that send no message; then somebody who does."""
    import grpc.aio

    async def attack() -> Counter[str]:
        address = f"{target.host}:{target.grpc_port}"
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(16)]
        calls = [channel.stream_unary(INFER)() for channel in channels for _ in range(SILENT_CALLS // 16)]
        await asyncio.sleep(2)
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            found: Counter[str] = Counter()
            for _ in range(5):
                with contextlib.suppress(Exception):
                    await channel.unary_unary("/inference.GRPCInferenceService/ServerMetadata")(b"", timeout=10)
                    found["answered"] += 1
        for call in calls:
            call.cancel()
        for channel in channels:
            await channel.close()
        return found or Counter({"refused": 5})

    return asyncio.run(attack())


def _large_calls(target: Target, size: int = 60 * MIB, count: int = 20) -> Counter[str]:
    import grpc

    message = b"\x3a" + bytes([(size >> shift & 127) | 128 for shift in (0, 7, 14)] + [size >> 21]) + bytes(size)
    return _calls(target, message, count, grpc)


def _parameters(target: Target) -> Counter[str]:
    """15 MiB of parameters of one input."""
    import grpc

    def field_of(number: int, data: bytes) -> bytes:
        size, text = len(data), bytearray([number << 3 | 2])
        while size > 127:
            text.append(size & 127 | 128)
            size >>= 7
        return bytes([*text, size]) + data

    entries = b"".join(field_of(4, field_of(1, b"%07d" % n) + field_of(2, b"\x08\x01")) for n in range(1_000_000))
    return _calls(target, field_of(5, field_of(1, b"image") + entries), 1, grpc)


def _calls(target: Target, message: bytes, count: int, grpc: Any) -> Counter[str]:
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    with contextlib.ExitStack() as stack:
        address = f"{target.host}:{target.grpc_port}"
        channels = [stack.enter_context(grpc.insecure_channel(address, options=options)) for _ in range(count)]
        calls = [channel.unary_unary(INFER).future(message, timeout=120) for channel in channels]
        return Counter(str(call.code()).removeprefix("StatusCode.") for call in calls)


ATTACKS = {
    "tiff": Attack(_tiff),
    "string": Attack(_string),
    "refused": Attack(_refused),
    "wide": Attack(_wide),
    "wide-4": Attack(partial(_wide, images=4)),
    "parts": Attack(_parts),
    "six-parts": Attack(_six_parts),
    "no-bodies": Attack(_no_bodies, {"max_connections": FEW_CONNECTIONS}),
    "idle-metrics": Attack(_idle_metrics),
    "large-raw": Attack(_large_raw),
    "silent-calls": Attack(_silent_calls),
    "large-calls": Attack(_large_calls, {"max_held_bytes": 128 * MIB}),
    "parameters": Attack(_parameters),
}
