"""The client against servers whose every delay and answer is known."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from milkweed.bench.load.client import Endpoints, run_client
from milkweed.bench.load.connection import learned, recovery_seconds
from milkweed.bench.load.plan import Plan, Shot, Target, Watch, host_of, target_of
from milkweed.bench.load.processes import Clients, run_plan
from milkweed.bench.load.samples import Samples
from milkweed.bench.ports import free_port

from ...support.fake_server import OK, Answering, Fake, fake_server
from ...support.waiting import HANG_SECONDS, eventually


def plan(fake: Fake | None = None, **changes: Any) -> Plan:
    target = fake.target if fake else ("127.0.0.1", free_port())
    usual: dict[str, Any] = {"rate": 40, "arrivals": "fixed", "seconds": 0.5, "connections": 100}
    return Plan(targets=(target,), path="/classify", shots=(Shot(b"image", "image/jpeg"),), **{**usual, **changes})


def ran(wanted: Plan) -> Samples:
    return run_client(wanted, time.monotonic() + 0.02)


def says(answer: bytes, seconds: float = 0.0) -> Answering:
    async def say(number: int, body: bytes) -> bytes:
        await asyncio.sleep(seconds)
        return answer

    return say


def with_body(body: bytes, head: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (head, len(body), body)


def test_latency_counts_from_the_intended_start() -> None:
    """One request at a time, 50 ms each, one due every 25 ms: each waits for all before it."""
    turn = asyncio.Lock()

    async def one_by_one(number: int, body: bytes) -> bytes:
        async with turn:
            await asyncio.sleep(0.05)
        return OK

    with fake_server(one_by_one) as fake:
        seen = ran(plan(fake, seconds=0.25))
    assert seen.counts() == {"200": 10}
    want = [0.05 * (number + 1) - 0.025 * number for number in range(10)]
    found = [latency for _, latency in sorted(zip(seen.starts, seen.latencies, strict=True))]
    assert all(latency > least - 0.005 for latency, least in zip(found, want, strict=True))


def test_a_client_that_is_late_says_how_late_and_counts_it() -> None:
    with fake_server(says(OK)) as fake:
        seen = run_client(plan(fake, seconds=0.1), time.monotonic() - 0.3)
    assert len(seen) == 4
    assert all(lateness > 0.3 - start for lateness, start in zip(seen.lateness, seen.starts, strict=True))
    assert all(latency > lateness for latency, lateness in zip(seen.latencies, seen.lateness, strict=True))


def test_a_client_is_never_early_and_no_later_than_the_server_saw_it() -> None:
    arrivals: list[float] = []

    async def note(number: int, body: bytes) -> bytes:
        arrivals.append(time.monotonic())
        return OK

    with fake_server(note) as fake:
        begin = time.monotonic() + 0.02
        seen = run_client(plan(fake, rate=100, arrivals="poisson", seconds=1), begin)
    assert min(seen.lateness) >= 0
    sent = sorted(start + lateness for start, lateness in zip(seen.starts, seen.lateness, strict=True))
    assert all(at <= arrival - begin for at, arrival in zip(sent, sorted(arrivals), strict=True))


def test_a_request_not_answered_in_time_is_cancelled_by_closing() -> None:
    with fake_server(says(OK, seconds=10 * HANG_SECONDS)) as fake:
        seen = ran(plan(fake, timeout_seconds=2.0, seconds=0.1))  # by then the server has read them
        eventually(lambda: fake.left == 4)
    assert seen.counts() == {"timeout": 4}
    assert min(seen.latencies) >= 2.0


def test_a_closed_loop_waits_for_each_answer_and_keeps_its_connections() -> None:
    with fake_server(says(OK, seconds=0.05)) as fake:
        seen = ran(plan(fake, rate=0, connections=2, seconds=0.5))
        assert (fake.connections, len(fake.bodies)) == (2, len(seen))
    assert 2 <= len(seen) <= 20
    assert seen.counts() == {"200": len(seen)}
    assert fake.heads[0].startswith(b"POST /classify HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nContent-Type: image/jpeg\r\n" in fake.heads[0]
    assert set(fake.bodies) == {b"image"}


@pytest.mark.parametrize(
    ("answer", "outcome", "bare"),
    [
        (with_body(b"", b"503 Service Unavailable\r\nRetry-After: 1"), "503", 0),
        (with_body(b"", b"503 Service Unavailable"), "503", 1),
        (with_body(b"", b"429 Too Many Requests\r\nretry-after: 2"), "429", 0),
        (with_body(b"x" * 9000), "200", 0),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "200", 0),
        (b"", "reset", 0),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "garbled", 0),
        (with_body(b"", b"200 OK\r\nConnection: close"), "200", 0),
    ],
)
def test_answers_are_told_apart(answer: bytes, outcome: str, bare: int) -> None:
    with fake_server(says(answer)) as fake:
        seen = ran(plan(fake, seconds=0.1, timeout_seconds=HANG_SECONDS))
    assert seen.counts() == {outcome: 4}
    assert seen.bare_refusals == 4 * bare


def test_connection_close_is_obeyed() -> None:
    with fake_server(says(with_body(b"ok", b"200 OK\r\nConnection: close"))) as fake:
        ran(plan(fake, rate=0, connections=1, seconds=0.1))
        assert fake.connections == len(fake.bodies) > 1


def test_nobody_there_is_refused() -> None:
    assert ran(plan(seconds=0.1)).counts() == {"refused": 4}


def test_more_requests_than_connections_are_not_forgotten() -> None:
    with fake_server(says(OK, seconds=1.5)) as fake:
        seen = ran(plan(fake, seconds=0.2, connections=3))
    assert seen.counts() == {"200": 3, "no_connection": 5}


def test_a_share_of_the_requests_is_malformed() -> None:
    async def judge(number: int, body: bytes) -> bytes:
        return OK if body == b"image" else with_body(b"", b"422 Unprocessable")

    shots = Shot(b"image", ""), Shot(b"bad", "", good=False)
    with fake_server(judge) as fake:
        seen = ran(replace(plan(fake, rate=800, seconds=1, connections=800, malformed_share=0.25), shots=shots))
    malformed = seen.counts(good=False)["422"]
    assert malformed == pytest.approx(200, abs=50)
    assert seen.counts(good=True) == {"200": 800 - malformed}


def test_somebody_elses_answer_and_hidden_errors_are_wrong() -> None:
    async def swap(number: int, body: bytes) -> bytes:
        return with_body((b'{"class": 1}', b'{"class": 2}', b'{"class": 1, "error": 3}')[number % 3])

    with fake_server(swap) as fake:
        wanted = learned(plan(fake, seconds=0.225, answer=rb'"class": (\d)'))
        assert wanted.shots[0].expected == b"1"
        seen = ran(wanted)
    assert (seen.counts(), seen.wrong) == ({"200": 9}, 6)


def test_learning_from_a_server_that_refuses_says_what_it_said() -> None:
    refused = pytest.raises(RuntimeError, match=r"a good request of 5 bytes got 404: b'no such thing'")
    with fake_server(says(with_body(b"no such thing", b"404 Not Found"))) as fake, refused:
        learned(plan(fake))


def test_a_refusal_goes_to_the_other_server_and_a_lost_connection_nowhere() -> None:
    refusal = with_body(b"", b"503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close")
    for first, outcome, moved in ((refusal, {"200": 8}, 4), (b"", {"200": 4, "reset": 4}, 0)):

        async def say(number: int, body: bytes, first: bytes = first) -> bytes:
            return first if body else OK  # /readyz has no body

        with fake_server(say) as one, fake_server(says(OK)) as other:
            seen = ran(replace(plan(one, seconds=0.2, watch=Watch()), targets=(one.target, other.target)))
        assert (seen.counts(), seen.moved) == (outcome, moved)


def test_readiness_is_heard_of_late() -> None:
    """The second server is not ready from the third question on; that is known 60 ms later."""
    one, other = ("h", 1), ("h", 2)
    asked: list[float] = []

    async def ready(target: Target) -> bool:
        asked.append(time.monotonic())
        return target == one or len(asked) < 6

    async def follow() -> None:
        endpoints = Endpoints((one, other), Watch(0.02, 0.06), ready)
        endpoints.start()
        while len(asked) < 6:
            assert endpoints.listed == [one, other]
            await asyncio.sleep(0.001)
        while endpoints.listed == [one, other]:
            await asyncio.sleep(0.001)
        assert time.monotonic() - asked[5] >= 0.055
        assert {endpoints.next() for _ in range(4)} == {one}
        assert endpoints.other(one) == one  # there is no other
        endpoints.stop()

    asyncio.run(follow())


def test_servers_take_turns() -> None:
    endpoints = Endpoints((("h", 1), ("h", 2)))
    turns = [endpoints.next() for _ in range(6)]
    assert turns[:2] == turns[2:4] == turns[4:]
    assert len(set(turns)) == 2


@pytest.mark.parametrize(
    ("url", "target", "host"),
    [
        ("http://a:8000", ("a", 8000), "a:8000"),
        ("http://a/", ("a", 80), "a:80"),
        ("http://[::1]:9", ("::1", 9), "[::1]:9"),
    ],
)
def test_urls(url: str, target: tuple[str, int], host: str) -> None:
    assert target_of(url) == target
    assert host_of(target) == host


@pytest.mark.parametrize("url", ["https://a:8000", "a:8000", "http://", "http://a:8000/classify"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"expected http://HOST:PORT"):
        target_of(url)


def test_processes_share_the_load_and_end_early() -> None:
    with fake_server(says(OK)) as fake:
        seen = run_plan(plan(fake, rate=200, seconds=0.5), 2)
        assert seen.counts() == {"200": 100}
        assert seen.cpu_seconds > 0
        with Clients(plan(fake, rate=200, seconds=3600)) as clients:
            begin = clients.begin()
            eventually(lambda: time.monotonic() > begin + 0.3 and fake.bodies)
            clients.stop()
            seen, ended = clients.results(), time.monotonic()
        assert seen.stopped_after is not None
        assert 0.3 <= seen.stopped_after <= ended - begin
        assert 0 < len(seen) <= 200 * seen.stopped_after + 2


def test_recovery_is_waited_for() -> None:
    async def soon(number: int, body: bytes) -> bytes:
        return OK if number >= 3 else with_body(b"", b"503 Later")

    with fake_server(soon) as fake:
        took = recovery_seconds(plan(fake), least_in_a_row=2, most_seconds=HANG_SECONDS)
        assert len(fake.bodies) == 5
    assert took is not None
    assert took >= 0.15
    assert recovery_seconds(plan(), least_in_a_row=1, most_seconds=0.1) is None
