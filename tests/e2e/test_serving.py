"""What a client sees of a warm server process."""

import asyncio
import json
from typing import Any

import httpx

from ..support.server_parts import encoded
from ..support.waiting import HANG_SECONDS
from .connections.raw_client import dial


def test_start_line_names_what_is_served(server: Any) -> None:
    for words in (
        "tiny (deit_tiny_patch16_224, version ",
        "device cpu",
        "loader cpu: ",
        "dtype float32",
        "kernels",
    ):
        assert words in server.line
    listening = json.loads(server.wait_log("listening"))
    assert listening["event"]["url"] == server.url


def test_300_posts_at_concurrency_32_without_error(server: Any) -> None:
    images = [encoded("JPEG", seed=seed, size=(64, 64)) for seed in range(10)]
    name = 'milkweed_images_total{model="tiny",outcome="ok"}'
    before = server.metric(name)

    async def post_all() -> list[list[Any]]:
        limits = httpx.Limits(max_connections=32, max_keepalive_connections=32)
        async with httpx.AsyncClient(base_url=server.url, limits=limits, timeout=HANG_SECONDS) as client:
            answers = await asyncio.gather(*(client.post("/classify", content=images[i % 10]) for i in range(300)))
        assert {answer.status_code for answer in answers} == {200}
        return [answer.json()["results"] for answer in answers]

    results = asyncio.run(post_all())
    # Whatever batches they went in, the same image has the same answer to the last digit.
    assert all(results[i] == results[i % 10] for i in range(300))
    assert server.metric(name) - before == 300


def test_long_body_gets_its_413_while_the_client_still_sends(server: Any) -> None:
    with dial(server.url) as client:
        client.sendall(b"POST /classify HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
        for _ in range(21):  # one more than an image may have
            client.sendall(chunk)
        answer = client.recv(4096)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer.lower()


def test_head_leaves_the_body_out_and_the_connection_in_step(server: Any) -> None:
    asked = ("/livez", "/v1/models", "/docs", "/v2/models/none")
    for url, paths in ((server.url, asked), (server.metrics_url, ("/readyz",))):
        with httpx.Client(base_url=url) as client:
            for path in paths:  # a body that was sent all the same would be read as the next answer
                head, get = client.head(path), client.get(path)
                assert (head.status_code, head.headers["content-length"]) == (get.status_code, str(len(get.content)))
            assert client.head("/metrics").status_code == 200
