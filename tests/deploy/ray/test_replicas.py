"""Three replicas on this machine: the plain server's answers and refusals, and what becomes of requests when one goes.

By a Python that has Ray. `-s` shows the rows that docs/ray.md has.
"""

import asyncio
import base64
import io
import json
import math
import os
import signal
import time
from collections import Counter
from typing import Any

import httpx
import pytest
from PIL import Image
from starlette.testclient import TestClient

from .load import CLIENTS, Books, said, under_load

pytestmark = pytest.mark.slow

STEADY_SECONDS = 5.0
ANSWERED = 'milkweed_images_total{model="demo",outcome="ok"}'
IN_HAND = 'milkweed_http_requests_in_flight{route="/classify"}'


def check(books: Books, bodies: dict[str, bytes], plain: TestClient, *ends: str) -> None:
    """Every request has an end, every try one of these, and what was answered is what the plain server says."""
    assert books.tries.keys() <= set(ends)
    assert books.sent == sum(books.answers.values()) + books.given_up
    assert books.tries["200"] == sum(books.answers.values())
    assert books.bare == 0
    right = {(name, said(plain.post("/classify", content=body))) for name, body in bodies.items()}
    assert books.answers.keys() <= right
    assert len({answer for _, answer in right}) == len(bodies)


def row(what: str, books: Books, *more: str) -> None:
    tries = books.tries
    cells = (books.sent, sum(books.answers.values()), *(tries[how] for how in ("500", "503", "404", "lost", "refused")))
    print("\n|", " | ".join(map(str, (what, *cells, *more))), "|")


def test_headers_and_errors_are_those_of_the_server(three: Any, plain: TestClient, bodies: dict[str, bytes]) -> None:
    body = bodies["picture0"]
    with httpx.Client(base_url=three.url, timeout=60, trust_env=False) as client:
        answer = client.post("/classify?top_k=1", content=body, headers={"X-Request-ID": "mine-1"})
        assert answer.status_code == 200
        assert answer.json()["request_id"] == "mine-1"
        assert "forward;dur=" in answer.headers["server-timing"]
        for method, path, sent in (
            ("POST", "/classify", b"no image"),
            ("POST", "/classify", bodies["picture1"][:-200]),
            ("POST", "/classify?model=nobody", body),
            ("GET", "/classify", b""),
            ("GET", "/nothing", b""),
        ):
            ours, theirs = client.request(method, path, content=sent), plain.request(method, path, content=sent)
            assert theirs.is_client_error
            assert (ours.status_code, ours.json()["error"]["code"]) == (
                theirs.status_code,
                theirs.json()["error"]["code"],
            )
        lines = client.post(
            "/classify",
            json={"images": [base64.b64encode(body).decode() for body in bodies.values()]},
            headers={"Accept": "application/x-ndjson"},
        ).text.splitlines()
        assert json.loads(lines[-1])["succeeded"] == len(lines) - 1 == len(bodies)


def test_a_full_queue_is_refused_by_the_replica(three: Any) -> None:
    out = io.BytesIO()
    Image.new("RGB", (1000, 1000), "teal").save(out, "PNG", compress_level=1)
    slow = {"images": [base64.b64encode(out.getvalue()).decode()] * 12}

    async def at_once(count: int) -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=three.url, timeout=60, trust_env=False) as client:
            return await asyncio.gather(*(client.post("/classify", json=slow) for _ in range(count)))

    answers = asyncio.run(at_once(60))
    refused = [answer for answer in answers if answer.status_code != 200]
    assert 0 < len(refused) < len(answers)
    for answer in refused:
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overloaded")
        assert 1 <= int(answer.headers["retry-after"]) <= 60


def test_a_killed_replica_loses_nothing_silently(three: Any, plain: TestClient, bodies: dict[str, bytes]) -> None:
    ports = three.metrics_ports()
    assert len(set(ports.values())) == len(ports) == 3
    before = {port: three.metric(port, ANSWERED) for port in ports.values()}
    victim, times = next(iter(ports)), [time.monotonic()]

    def three_again() -> bool:
        now = three.metrics_ports()
        fresh = now.keys() - ports.keys()
        return len(now) == 3 and len(fresh) == 1 and all(three.metric(now[pid], ANSWERED) for pid in fresh)

    def killed() -> None:
        time.sleep(STEADY_SECONDS)
        # Each has a share, seen on its own metrics port, which answers probes too.
        assert all(three.metric(port, ANSWERED) > count for port, count in before.items())
        assert httpx.get(f"http://127.0.0.1:{ports[victim]}/livez", trust_env=False).status_code == 200
        three.wait(lambda: three.metric(ports[victim], IN_HAND) >= 3, 0.1)
        os.kill(victim, signal.SIGKILL)
        times.append(time.monotonic())
        three.wait(three_again)
        times.append(time.monotonic())
        time.sleep(STEADY_SECONDS)

    books = under_load(three.url, bodies, killed)
    row("one of three killed", books, f"{times[2] - times[1]:.1f} s")
    for what, since, until in zip(("before", "two", "three again"), times, [*times[1:], math.inf], strict=True):
        print(f"{what}: p50 {books.percentile_ms(0.5, since, until):.0f} ms,", end=" ")
        print(f"p99 {books.percentile_ms(0.99, since, until):.0f} ms, load average {os.getloadavg()[0]:.1f}")

    # By the rule all are answered. Only what the killed one had in hand fails once, with 500 or a broken connection.
    check(books, bodies, plain, "200", "500", "503", "lost")
    assert books.given_up == 0
    assert books.tries["500"] + books.tries["lost"] <= CLIENTS
    assert Counter(three.replicas().values()) == {"RUNNING": 3}


def test_a_changed_config_loses_nothing(three: Any, plain: TestClient, bodies: dict[str, bytes]) -> None:
    old = three.replicas().keys()

    def replaced() -> bool:
        now = three.replicas()
        return not old & now.keys() and [*now.values()] == ["RUNNING"] * 3

    def changed() -> None:
        three.put(three.config(MILKWEED_TOP_K="5"))
        three.wait(replaced)

    began = time.monotonic()
    books = under_load(three.url, bodies, changed)
    row("three replaced", books, f"{time.monotonic() - began:.1f} s")
    check(books, bodies, plain, "200", "503")
    assert books.given_up == 0


def test_an_application_taken_out_answers_what_it_has(three: Any, plain: TestClient, bodies: dict[str, bytes]) -> None:
    nothing = three.config() | {"applications": []}
    books = under_load(three.url, bodies, lambda: three.deploy(nothing, "NONE"))
    row("taken out", books)
    check(books, bodies, plain, "200", "404")  # Ray's: the route is gone
    assert books.tries["404"]
    assert not three.replicas()


@pytest.mark.parametrize(
    ("setting", "value", "why"),
    [
        ("MILKWEED_REPOSITORY", "/nowhere", "repository /nowhere: No such file or directory"),
        ("MILKWEED_GRPC_PORT", "9000", "MILKWEED_GRPC_PORT = 9000: a replica behind Ray Serve has no such port"),
    ],
)
def test_what_cannot_be_served_fails_the_deployment(cluster: Any, setting: str, value: str, why: str) -> None:
    seen = cluster.deploy(cluster.config(1, **{setting: value}), "DEPLOY_FAILED", "RUNNING")
    assert seen["status"] == "DEPLOY_FAILED"
    assert why in json.dumps(seen)
    cluster.deploy(cluster.config() | {"applications": []}, "NONE")


def test_shutdown_ends_every_try(three: Any, plain: TestClient, bodies: dict[str, bytes]) -> None:
    books = under_load(three.url, bodies, three.shutdown)
    row("serve shutdown", books)
    # Ray kills its proxy at once: what is in flight is lost, and seen to be.
    check(books, bodies, plain, "200", "lost", "refused")
