"""Three replicas on this machine: the plain server's answers and refusals, and what becomes of requests when one goes.

By a Python that has Ray. `-s` shows the rows that docs/ray.md has.
"""

import asyncio
import json
import math
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from milkweed.bench.bodies import jpegs, pictures
from milkweed.bench.load.connection import learned
from milkweed.bench.load.plan import Plan, target_of
from milkweed.bench.load.processes import Clients
from milkweed.bench.load.requests import shots
from milkweed.bench.load.samples import OK, Samples, percentiles_ms

from ...support.bodies import as_json

pytestmark = pytest.mark.slow

CLIENTS = 12
FOREVER_SECONDS, TRY_SECONDS, STEADY_SECONDS = 3600.0, 30.0, 5.0
RESULTS = rb'"results": (\[.*\])'
ANSWERED = 'milkweed_images_total{model="demo",outcome="ok"}'
IN_HAND = 'milkweed_http_requests_in_flight{route="/classify"}'


@pytest.fixture(scope="module")
def bodies() -> list[bytes]:
    """Return some small JPEGs, and one that takes long to decode."""
    return [*jpegs(pictures(64, 5)), *jpegs(pictures(3000, 1))]


@pytest.fixture
def plan(three: Any, plain: httpx.Client, bodies: list[bytes]) -> Plan:
    """Return clients that send one request after the other, with the plain server's answers to compare with."""
    options = {"connections": CLIENTS, "timeout_seconds": TRY_SECONDS, "answer": RESULTS}
    asked = Plan((target_of(str(plain.base_url)),), "/classify", shots("raw", bodies), FOREVER_SECONDS, **options)
    known = learned(asked)
    assert len({shot.expected for shot in known.shots if shot.good}) == len(bodies)
    return replace(known, targets=(target_of(three.url),))


def under_load(what: str, three: Any, plan: Plan, happens: Callable[[], object], *ends: str) -> Samples:
    """Let something happen once a client is answered; every request ends in one of these ways, or rightly."""
    before = three.samples(ANSWERED)
    with Clients(plan) as clients:
        began = clients.begin()
        three.wait(lambda: three.samples(ANSWERED) != before, 0.1)
        happens()
        seconds = time.monotonic() - began
        clients.stop()
        samples = clients.results()
    counts = samples.counts()
    print(f"\n| {what} | {len(samples)} | {dict(counts)} | {seconds:.1f} s |")
    assert counts.keys() <= {OK, *ends}
    assert (samples.wrong, samples.bare_refusals) == (0, 0)
    return samples


def test_headers_and_errors_are_those_of_the_server(three: Any, plain: httpx.Client, bodies: list[bytes]) -> None:
    with httpx.Client(base_url=three.url, timeout=60, trust_env=False) as client:
        answer = client.post("/classify?top_k=1", content=bodies[0], headers={"X-Request-ID": "mine-1"})
        assert answer.status_code == 200
        assert answer.json()["request_id"] == "mine-1"
        assert "forward;dur=" in answer.headers["server-timing"]
        for method, path, sent in (
            ("POST", "/classify", b"no image"),
            ("POST", "/classify", bodies[1][:-200]),
            ("POST", "/classify?model=nobody", bodies[0]),
            ("GET", "/classify", b""),
            ("GET", "/nothing", b""),
        ):
            ours, theirs = (side.request(method, path, content=sent) for side in (client, plain))
            assert theirs.is_client_error
            assert ours.status_code == theirs.status_code
            assert ours.json()["error"]["code"] == theirs.json()["error"]["code"]
        lines = client.post(
            "/classify", json=as_json(*bodies), headers={"Accept": "application/x-ndjson"}
        ).text.splitlines()
        assert json.loads(lines[-1])["succeeded"] == len(lines) - 1 == len(bodies)


def test_a_full_queue_is_refused_by_the_replica(three: Any) -> None:
    slow = as_json(*jpegs(pictures(1000, 1)) * 12)

    async def at_once(count: int) -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=three.url, timeout=60, trust_env=False) as client:
            return await asyncio.gather(*(client.post("/classify", json=slow) for _ in range(count)))

    answers = asyncio.run(at_once(60))
    refused = [answer for answer in answers if answer.status_code != 200]
    assert 0 < len(refused) < len(answers)
    for answer in refused:
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overloaded")
        assert 1 <= int(answer.headers["retry-after"]) <= 60


def test_a_killed_replica_loses_nothing_silently(three: Any, plan: Plan) -> None:
    urls, before = three.metrics_urls(), three.samples(ANSWERED)
    assert len(set(urls.values())) == len(urls) == 3
    victim, times = next(iter(urls)), [0.0]

    def three_again() -> bool:
        answered = three.samples(ANSWERED)
        fresh = answered.keys() - urls.keys()
        return len(answered) == 3 and len(fresh) == 1 and all(answered[pid] for pid in fresh)

    def killed() -> None:
        began = time.monotonic()
        time.sleep(STEADY_SECONDS)
        # Each has a share, seen on its own metrics port, which answers probes too.
        assert all(count > before[pid] for pid, count in three.samples(ANSWERED).items())
        assert httpx.get(f"{urls[victim]}/livez", trust_env=False).status_code == 200
        three.wait(lambda: three.samples(IN_HAND)[victim] >= 3, 0.1)
        os.kill(victim, signal.SIGKILL)
        times.append(time.monotonic() - began)
        three.wait(three_again)
        times.append(time.monotonic() - began)
        time.sleep(STEADY_SECONDS)

    samples = under_load("one of three killed", three, plan, killed, "500", "503", "reset")
    for what, since, until in zip(("before", "two", "three again"), times, [*times[1:], math.inf], strict=True):
        within = (latency for start, latency, end in samples.requests(True) if since <= start < until and end == OK)
        print(f"{what} from {since:.1f} s on: {percentiles_ms(sorted(within))}, load {os.getloadavg()[0]:.1f}")
    # Only what the killed one had in hand fails, with 500 or a broken connection.
    assert len(samples) - samples.counts()[OK] <= CLIENTS
    assert Counter(three.replicas().values()) == {"RUNNING": 3}


def test_a_changed_config_loses_nothing(three: Any, plan: Plan) -> None:
    old = three.replicas().keys()

    def replaced() -> bool:
        now = three.replicas()
        return not old & now.keys() and [*now.values()] == ["RUNNING"] * 3

    def changed() -> None:
        three.put(three.config(MILKWEED_TOP_K="5"))
        three.wait(replaced)

    samples = under_load("three replaced", three, plan, changed, "503")
    assert samples.counts()["503"] <= CLIENTS


def test_an_application_taken_out_answers_what_it_has(three: Any, plan: Plan) -> None:
    samples = under_load("taken out", three, plan, three.remove, "404")  # Ray's: the route is gone
    assert samples.counts()["404"]
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
    cluster.remove()


def test_shutdown_ends_every_try(three: Any, plan: Plan) -> None:
    # Ray kills its proxy at once: what is in flight is lost, and seen to be.
    under_load("serve shutdown", three, plan, three.shutdown, "reset", "refused")
