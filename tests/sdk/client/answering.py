"""The answers of a made-up server: every image's class is told by its bytes, so that order and loss are seen."""

import email
import json
import re
from email.policy import HTTP

from milkweed.client import Answer, Prediction

from ...support.fake_server import Answering, Fake

ABOUT = '"model": "made", "version": "0123456789ab", "request_id": "r1"'


def response(status: int, body: str | bytes, *headers: str) -> bytes:
    """A whole HTTP response."""
    content = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(content)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def refusal(status: int, code: str, *headers: str) -> bytes:
    """An error in the common shape."""
    return response(status, json.dumps({"error": {"code": code, "message": "no"}, "request_id": "r2"}), *headers)


def images_of(head: bytes, body: bytes) -> list[bytes]:
    """The images of a request, as Python's own MIME parser finds them."""
    kind = re.search(rb"(?i)content-type: ([^\r]+)", head)
    assert kind is not None
    if kind[1] == b"application/octet-stream":
        return [body]
    message = email.message_from_bytes(b"Content-Type: " + kind[1] + b"\r\n\r\n" + body, policy=HTTP)
    return [part.get_payload(decode=True) for part in message.iter_parts()]  # type: ignore[attr-defined]


def answers(images: list[bytes]) -> bytes:
    """A response whose classes are the images' texts; an image that begins with ! is refused."""
    results = [
        {"error": {"code": "undecodable", "message": f"image {place}: torn" if len(images) > 1 else "torn"}}
        if image.startswith(b"!")
        else {"predictions": [{"index": len(image), "id": "n0", "label": image.decode(), "score": 0.5}]}
        for place, image in enumerate(images)
    ]
    ok = any("predictions" in result for result in results)
    error = "" if ok else '"error": {"code": "undecodable", "message": "torn"}, '
    body = f'{{{error}{ABOUT}, "results": {json.dumps(results)}}}'
    return response(200 if ok else 422, body, "Server-Timing: queue;dur=1.5, total;dur=12.25")


def answer(text: str) -> Answer:
    """What the client makes of one of them."""
    stages = {"queue": 1.5, "total": 12.25}
    return Answer((Prediction(len(text), "n0", text, 0.5),), None, "made", "0123456789ab", "r1", stages)


def url(fake: Fake) -> str:
    """Where it answers."""
    return f"http://127.0.0.1:{fake.port}"


def saying(*said: bytes) -> Answering:
    """These, one a request; the last one again and again."""

    async def say(number: int, body: bytes) -> bytes:
        return said[min(number, len(said) - 1)]

    return say


def told_ms(head: bytes) -> int:
    """The time that a request says it has."""
    found = re.search(rb"X-Request-Timeout-Ms: (\d+)\r\n", head)
    assert found is not None
    return int(found[1])
