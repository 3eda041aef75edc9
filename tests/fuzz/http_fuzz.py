"""Throws made-up and mangled HTTP at a server and holds every answer against what may be said at all.

    python tests/fuzz --url http://127.0.0.1:8000 --seconds 600 [--seed 1]

Give the server little patience, or most of the time goes by waiting for it to lose it:
`milkweed serve --header-timeout-ms 300 --body-timeout-ms 300 --body-min-bytes-per-second 1000000`.
"""

import contextlib
import io
import json
import random
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

from .finding import Finding

TIMEOUT_SECONDS = 30.0

METHODS = (b"POST", b"POST", b"POST", b"GET", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"TRACE", b"BREW", b"")
PATHS = (
    *(b"/classify",) * 6,
    *(b"/classify?top_k=3", b"/classify?top_k=-1", b"/classify?model=%00", b"/classify?&&=&a", b"/classify?top_k=1e9"),
    *(b"/", b"/livez", b"/readyz", b"/metrics", b"/v1/models", b"/docs", b"/openapi.json", b"/nowhere", b"*", b"//"),
    *(b"/v2", b"/v2/health/ready", b"/v2/models/x", b"/v2/models/x/infer", b"/../../etc/passwd", b"/%2e%2e/%ff%0a"),
    *(b"http://[::1/classify", b"http://x/classify", b"/a b", b"/\xc3\xa9", b"/?" + b"a" * 3000),
)
TYPES = (
    *(b"image/jpeg", b"image/png", b"application/octet-stream", b"application/json", b"application/x-npy"),
    *(
        b"multipart/form-data; boundary=x",
        b"multipart/form-data",
        b"text/plain",
        b"application/json; charset=\xff",
        b"",
    ),
)
HEADERS = (
    *(b"Content-Type", b"X-Request-ID", b"X-Request-Timeout-Ms", b"Accept", b"Authorization", b"X-API-Key", b"Expect"),
    *(b"Content-Encoding", b"Connection", b"Upgrade", b"Host", b"Origin", b"X-Milkweed-Priority", b"Cookie"),
    *(
        b"Inference-Header-Content-Length",
        b"Transfer-Encoding",
        b"Content-Length",
        b"Range",
        b"X-\xff",
        b"",
        b" ",
        b"X Y",
    ),
)
VALUES = (
    *(b"", b"0", b"1", b"-1", b"99999999999999999999", b"1e3", b"a" * 300, b"\xff\xfe", b"chunked", b"gzip, chunked"),
    *(b"100-continue", b"identity", b"close", b"keep-alive", b"upgrade", b"h2c", b"websocket", b"[", b"Bearer x"),
    *(b"application/x-ndjson", b"*/*", b"bytes=0-1", b"a\tb", b"a\x00b", b"a\x0bb", b"<script>alert(1)</script>", b"5"),
)
# What a stranger shall never read: traces, places in our file system, types of our exceptions.
SECRETS = (b"Traceback", b"site-packages", b'File "', b"/root", b"/home/", b"/usr/lib", b"Exception", b".py")
# 501 is Open Inference Protocol's word for what it has not.
STATUSES = frozenset({200, 204, 304, *range(400, 452), 501, 503, 504})


def image(draw: random.Random) -> bytes:
    """A photograph, more or less."""
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (24, 24), (draw.randrange(256), 90, 20)).save(out, draw.choice(("JPEG", "PNG", "BMP", "GIF")))
    data = bytearray(out.getvalue())
    for _ in range(draw.choice((0, 0, 1, 3, 20))):
        data[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(data[: draw.choice((len(data), len(data), draw.randrange(len(data) + 1)))])


def body(draw: random.Random) -> bytes:
    """What may be in a request."""
    kind = draw.randrange(6)
    if kind == 0:
        return b""
    if kind == 1:
        return bytes(draw.randrange(256) for _ in range(draw.randrange(60)))
    if kind == 2:
        return draw.choice((b'{"images": []}', b'{"images": ["AAAA", 3, null]}', b"[" * 999, b'{"inputs": [{}]}', b"{"))
    if kind == 3:
        return b'--x\r\nContent-Disposition: form-data; name="i"; filename="a"\r\n\r\n' + image(draw) + b"\r\n--x--\r\n"
    return image(draw)


def framed(draw: random.Random, data: bytes) -> tuple[bytes, bytes]:
    """The header that says how long a body is, true or not, and the body as it is sent."""
    kind = draw.randrange(10)
    if kind < 6:
        return b"Content-Length: %d\r\n" % len(data), data
    if kind == 6:
        return b"Content-Length: %d\r\n" % max(0, len(data) + draw.randrange(-9, 9)), data
    if kind == 7:
        return b"", data
    cut = draw.randrange(len(data) + 1)
    chunks = [part for part in (data[:cut], data[cut:]) if part]
    sizes = [b"%x" % len(part) for part in chunks]
    if kind == 9 and sizes:
        sizes[-1] = draw.choice((b"0", b"-1", b"zz", b"fffffffffffffffff", sizes[-1] + b";a=b", b""))
    parts = [b"%b\r\n%b\r\n" % pair for pair in zip(sizes, chunks, strict=True)]
    return b"Transfer-Encoding: chunked\r\n", b"".join(parts) + draw.choice((b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b""))


def request(draw: random.Random) -> bytes:
    """One request, perhaps mangled."""
    length, data = framed(draw, body(draw))
    lines = [b"%b %b HTTP/1.1\r\n" % (draw.choice(METHODS), draw.choice(PATHS)), b"Host: x\r\n", length]
    if draw.random() < 0.5:
        lines.append(b"Content-Type: %b\r\n" % draw.choice(TYPES))
    for _ in range(draw.choice((0, 0, 0, 1, 2, 150))):
        lines.append(b"%b: %b\r\n" % (draw.choice(HEADERS), draw.choice(VALUES)))
    whole = bytearray(b"".join(lines) + b"\r\n" + data)
    for _ in range(draw.choice((0, 0, 0, 0, 1, 4))):
        place = draw.randrange(len(whole))
        whole[place : place + draw.randrange(3)] = bytes(draw.randrange(256) for _ in range(draw.randrange(3)))
    return bytes(whole)


def conversation(draw: random.Random) -> list[bytes]:
    """What is sent over one connection, piece by piece; the last request asks for the end."""
    requests = [request(draw) for _ in range(draw.choice((1, 1, 1, 2, 5)))]
    sent = b"".join((*requests, b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
    cuts = sorted(draw.randrange(len(sent) + 1) for _ in range(draw.choice((0, 0, 1, 3))))
    return [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)]


def talk(address: tuple[str, int], pieces: list[bytes]) -> bytes:
    """Say it all; what is answered until the connection ends."""
    received = b""
    with socket.create_connection(address, timeout=TIMEOUT_SECONDS) as client:
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                client.sendall(piece)
        with contextlib.suppress(ConnectionError):
            while chunk := client.recv(65_536):
                received += chunk
    return received


def check(received: bytes) -> list[int]:
    """The statuses of what was answered.

    Raises:
        AssertionError: it is not what may be said.
    """
    found = []
    for secret in SECRETS:
        assert secret not in received, f"the answer has {secret!r}"
    while received:
        head, end, rest = received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 "), f"no answer: {head[:80]!r}"
        status = int(head.split()[1])
        if status == 100:
            received = rest
            continue
        assert status in STATUSES, f"status {status}"
        found.append(status)
        fields = dict(line.lower().partition(b": ")[::2] for line in head.split(b"\r\n")[1:])
        if not end or b"content-length" not in fields:
            return found  # cut off, or in chunks: nothing more is looked at
        length = int(fields[b"content-length"])
        if rest.startswith(b"HTTP/1.1 ") or not rest:
            length = 0  # to HEAD
        if status >= 400 and length and len(rest) >= length:
            document = json.loads(rest[:length])
            assert document["error"], f"no error in {document}"
        received = rest[length:]
    return found


def alive(address: tuple[str, int]) -> bool:
    """Whether the server answers its probe."""
    return b" 200 " in talk(address, [b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"])[:20]


def against(url: str) -> Callable[[random.Random], None]:
    """A target: one conversation with the server at a URL, and now and then whether it is alive."""
    parts = urlsplit(url)
    address = (parts.hostname or "127.0.0.1", parts.port or 80)

    def http(draw: random.Random) -> None:
        pieces = conversation(draw)
        try:
            check(talk(address, pieces))
            assert draw.randrange(50) or alive(address), "the probe fails"
        except (AssertionError, OSError, ValueError) as error:
            raise Finding(f"{type(error).__name__}: {error}", b"".join(pieces)) from error

    return http
