"""The attacks: how they are sent, and what others are answered meanwhile.

Each has a function that makes its body, which is called before the time begins, and one that sends it and counts the
outcomes.
"""

import asyncio
import contextlib
import http.client
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc.aio

from ...loaders.headers.info import FORMATS, OPT_IN_FORMATS
from ..load.requests import MULTIPART
from . import payloads
from .payloads import CLASSES, HEAD, MESSAGES, MIB, bmp

ANSWER_SECONDS, BUSY_SECONDS, HELD_SECONDS, SPIN_SECONDS = 120.0, 0.5, 2.0, 10.0
JSON = {"Content-Type": "application/json"}
NPY = {"Content-Type": "application/x-npy"}
PARTS = {"Content-Type": "multipart/form-data; boundary=b"}
SLOW = {"Content-Type": MULTIPART, "X-Request-Timeout-Ms": "10000"}
BRIEF = {"X-Request-Timeout-Ms": "1000"}
INFER = "/inference.GRPCInferenceService/ModelInfer"
CHANNEL = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
ALL_FORMATS = {"formats": ",".join(FORMATS + OPT_IN_FORMATS).lower()}


@dataclass(frozen=True)
class Target:
    """The addresses of the attacked server."""

    host: str
    port: int
    metrics_port: int
    grpc_port: int

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None, port: int = 0
    ) -> str:
        """Send one request on a connection of its own; returns the status, or the name of the error."""
        connection = http.client.HTTPConnection(self.host, port or self.port, timeout=ANSWER_SECONDS)
        with contextlib.closing(connection):
            try:
                connection.request(method, path, body, headers or {})
                answer = connection.getresponse()
                answer.read()
                return str(answer.status)
            except OSError as error:
                return type(error).__name__

    def others(self, image: bytes) -> Counter[str]:
        """Ask as others would: probes on both ports, and pictures; counts the answers."""
        answers = Counter(f"image {self.ask('POST', '/classify', image)}" for _ in range(3))
        answers["livez " + self.ask("GET", "/livez")] += 1
        return answers + Counter(["metrics " + self.ask("GET", "/metrics", port=self.metrics_port)])

    @contextmanager
    def crowd(self, port: int, count: int, data: bytes = b"") -> Iterator[None]:
        """Keep so many connections open, fewer where no more are taken; on each, data are sent and nothing is read."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                for _ in range(count):
                    connection = stack.enter_context(socket.create_connection((self.host, port), 5))
                    connection.setblocking(False)
                    with contextlib.suppress(BlockingIOError):  # the server does not read it
                        connection.send(data)
            yield


@dataclass(frozen=True)
class Attack:
    """One attack.

    Args:
        run: sends the body to the target and counts the outcomes.
        body: makes the body, before the time begins.
        settings: the server's, where they are not as usual.
    """

    run: Callable[[Target, bytes], Counter[str]]
    body: Callable[[], bytes] = bytes
    settings: dict[str, Any] = field(default_factory=dict)


def _post(
    target: Target,
    body: bytes,
    path: str = "/classify",
    headers: dict[str, str] | None = None,
    times: int = 1,
    at_once: int = 1,
) -> Counter[str]:
    """Post the body several times."""
    with ThreadPoolExecutor(at_once) as pool:
        return Counter(pool.map(lambda _: target.ask("POST", path, body, headers), range(times)))


def _crowd(
    target: Target, data: bytes, count: int, port: str = "port", image: Callable[[], bytes] = payloads.photograph
) -> Counter[str]:
    """Open connections to a port and send the same on each; then others ask."""
    with target.crowd(getattr(target, port), count, data):
        return target.others(image())


def _waiting(target: Target, count: int, behind: bytes = b"") -> Counter[str]:
    """Open connections that all wait for the sandbox, with more that is sent behind each request."""
    return _crowd(target, HEAD % len(bmp()) + bmp() + behind, count, image=bmp)


def _beside(target: Target, slow: bytes, meanwhile: Callable[[Target], Counter[str]]) -> Counter[str]:
    """Post slow pictures in one request, and something else while they are decoded; then others ask."""
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(target.ask, "POST", "/classify", slow, SLOW)
        time.sleep(BUSY_SECONDS)
        return meanwhile(target) + Counter(["slow " + first.result()]) + target.others(bmp())


def _leave(target: Target, slow: bytes) -> Counter[str]:
    """Leave as soon as the sandbox is busy; then others ask."""
    head = HEAD.replace(b"Host: x", b"Host: x\r\nContent-Type: " + MULTIPART.encode())
    with socket.create_connection((target.host, target.port)) as connection:
        connection.sendall(head % len(slow) + slow)
        time.sleep(BUSY_SECONDS)
    return target.others(bmp())


def _odd_heads(target: Target, photograph: bytes) -> Counter[str]:
    """Send heads that servers read in different ways, and find the first status of each answer."""
    outcomes: Counter[str] = Counter()
    for what, head in payloads.ODD.items():
        with socket.create_connection((target.host, target.port), ANSWER_SECONDS) as connection:
            connection.sendall(head % len(photograph) + photograph)
            outcomes[f"{what} {connection.recv(4096)[9:12].decode('latin-1')}"] += 1
    return outcomes


def _held_calls(target: Target, message: bytes, count: int) -> Counter[str]:
    """Begin calls of gRPC that send nothing, or with a message read nothing; then others call and ask."""

    async def attack() -> Counter[str]:
        address = f"{target.host}:{target.grpc_port}"
        channels = [grpc.aio.insecure_channel(address, options=CHANNEL) for _ in range(16)]
        begin = [channel.unary_stream(INFER) if message else channel.stream_unary(INFER) for channel in channels]
        calls = [call(*[message][: len(message)]) for call in begin for _ in range(count // 16)]
        await asyncio.sleep(HELD_SECONDS)
        answers = await asyncio.to_thread(target.others, payloads.photograph())
        async with grpc.aio.insecure_channel(address, options=CHANNEL) as channel:
            metadata = channel.unary_unary("/inference.GRPCInferenceService/ServerMetadata")
            for _ in range(5):
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await metadata(b"", timeout=10)
                    answers["answered"] += 1
        for call in calls:
            call.cancel()
        for channel in channels:
            await channel.close()
        return answers

    return asyncio.run(attack())


def _calls(target: Target, message: bytes, count: int) -> Counter[str]:
    """Make calls of gRPC with this message, all at once."""
    with contextlib.ExitStack() as stack:
        address = f"{target.host}:{target.grpc_port}"
        channels = [stack.enter_context(grpc.insecure_channel(address, options=CHANNEL)) for _ in range(count)]
        calls = [channel.unary_unary(INFER).future(message, timeout=ANSWER_SECONDS) for channel in channels]
        return Counter(str(call.code()).removeprefix("StatusCode.") for call in calls)


def _spin(target: Target, _: bytes) -> Counter[str]:
    """Leave the server alone and keep two cores busy: what any other process would cost it."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: sum(range(1000))"]) for _ in range(2)]
    try:
        time.sleep(SPIN_SECONDS)
        return target.others(payloads.photograph())
    finally:
        for process in spinning:
            process.kill()
            process.wait()


_WIDE = partial(_post, path=f"/classify?top_k={CLASSES}", headers=NPY)
_SLOW = partial(payloads.slow_tiffs, 80)
ATTACKS = {
    "tiff": Attack(partial(_post, times=5, at_once=5), partial(payloads.tile, 22_000, 3), ALL_FORMATS),
    "tile": Attack(partial(_post, times=5, at_once=5), partial(payloads.tile, 16_000, 1), ALL_FORMATS),
    "slow-tiffs": Attack(partial(_beside, meanwhile=lambda target: target.others(bmp())), _SLOW, ALL_FORMATS),
    "slow-bodies": Attack(
        partial(_beside, meanwhile=lambda target: _post(target, bmp(19 * MIB), headers=BRIEF, times=20, at_once=5)),
        *(_SLOW, {**ALL_FORMATS, "max_held_bytes": 128 * MIB}),
    ),
    "slow-crowd": Attack(
        partial(_beside, meanwhile=partial(_waiting, count=1_000)),
        *(_SLOW, {**ALL_FORMATS, "max_connections": 1_000}),
    ),
    "slow-pipelined": Attack(
        partial(_beside, meanwhile=partial(_waiting, count=500, behind=payloads.PIPELINED)), _SLOW, ALL_FORMATS
    ),
    "slow-gone": Attack(_leave, partial(payloads.slow_tiffs, 40), ALL_FORMATS),
    "string": Attack(partial(_post, path="/v2/models/bench/infer", headers=JSON), payloads.long_string),
    "refused": Attack(partial(_post, headers=PARTS, times=30), lambda: b"--b\r\n" + bytes(60 * MIB)),
    "wide": Attack(_WIDE, partial(payloads.npy, (256, 6, 6, 3))),
    "wide-4": Attack(_WIDE, partial(payloads.npy, (4, 6, 6, 3))),
    "parts": Attack(partial(_post, headers=PARTS), partial(payloads.empty_parts, 60 * MIB)),
    "six-parts": Attack(partial(_post, headers=PARTS, times=6, at_once=6), partial(payloads.empty_parts, 24 * MIB)),
    "no-bodies": Attack(partial(_crowd, count=64), lambda: HEAD % 1_000, {"max_connections": 64}),
    "idle-metrics": Attack(partial(_crowd, port="metrics_port", count=2_000)),
    "idle-grpc": Attack(partial(_crowd, port="grpc_port", count=5_200), lambda: payloads.PREFACE),
    "large-raw": Attack(partial(_post, times=3), payloads.commented_jpeg),
    "odd-heads": Attack(_odd_heads, payloads.photograph),
    "silent-calls": Attack(partial(_held_calls, count=1_024)),
    "unread-calls": Attack(partial(_held_calls, count=80), payloads.wide_message, {"max_held_bytes": 64 * MIB}),
    "large-calls": Attack(
        partial(_calls, count=20),
        lambda: bytes(MESSAGES.ModelInferRequest(raw_input_contents=[bytes(60 * MIB)]).SerializeToString()),
        {"max_held_bytes": 128 * MIB},
    ),
    "parameters": Attack(partial(_calls, count=1), payloads.parameters),
}
CONTROL = {"spin": Attack(_spin)}
"""No attack: it is run where it is named, to tell what others cost from what they do to the server."""
