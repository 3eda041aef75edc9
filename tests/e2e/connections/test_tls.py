"""TLS over real sockets: certificates made here, versions, clients with and without one, and new files in place."""

import contextlib
import shutil
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from ...support.authority import Authority, needs_openssl, trusting
from ...support.waiting import HANG_SECONDS
from .raw_client import IMAGE, dial, read_end
from .test_hostile_crowds import BIG, BIG_LENGTH, HELD, IN_FLIGHT, OPEN, crowded, wait_for

pytestmark = needs_openssl


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "authority")


def name_on(url: str, context: ssl.SSLContext) -> str:
    """Read the name on the certificate that the server shows."""
    with dial(url, context) as client:
        certificate: Any = client.getpeercert()
    return dict(pair for part in certificate["subject"] for pair in part)["commonName"]


def test_requests_over_tls_and_a_new_certificate_while_it_runs(
    serving: Any, authority: Authority, tmp_path: Path
) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def install(name: str) -> None:
        for made, place in zip(authority.issue(name), (cert, key), strict=True):
            shutil.copy(made, place.with_suffix(".new"))
            place.with_suffix(".new").rename(place)

    install("first")
    with serving(tls_cert=cert, tls_key=key, header_timeout_ms=1000) as server:
        url = server.wait_ready()
        assert url.startswith("https://")
        context = trusting(authority)
        with httpx.Client(verify=context, timeout=HANG_SECONDS) as client:
            assert client.get(url + "/readyz").status_code == 200
            assert client.post(url + "/classify", content=b"no image").status_code == 415
            assert name_on(url, context) == "first"

            key.write_text("broken")
            server.wait_log("the old one stays in force")
            assert name_on(url, context) == "first"
            install("second")
            while name_on(url, context) != "second":  # a look a second
                pass
            assert client.get(url + "/readyz").status_code == 200  # the open connection goes on

        with dial(url) as silent:  # no handshake at all
            assert silent.recv(100) == b""
        with dial(url) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"HTTP" not in plain.recv(1000)
        server.terminate()
        assert server.exit() == 0
        assert not [line for line in server.log if "Traceback" in line]


def test_only_clients_with_a_certificate(serving: Any, authority: Authority, tmp_path: Path) -> None:
    cert, key = authority.issue("server")
    stranger = Authority(tmp_path, "stranger")
    with serving(tls_cert=cert, tls_key=key, tls_client_ca=authority.cert, tls_min_version="1.3") as server:
        url = server.wait_ready()
        with httpx.Client(verify=trusting(authority, authority.issue("client")), timeout=HANG_SECONDS) as client:
            assert client.get(url + "/livez").status_code == 200
        old = trusting(authority, authority.issue("client"))
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionError)):
            name_on(url, old)
        for certificate in (None, stranger.issue("client")):
            with (
                httpx.Client(verify=trusting(authority, certificate), timeout=HANG_SECONDS) as client,
                pytest.raises((httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError)),
            ):
                client.get(url + "/livez")


def test_who_has_not_shaken_hands_counts_and_makes_room(serving: Any, authority: Authority) -> None:
    cert, key = authority.issue("server")
    with (
        crowded(serving, 6, tls_cert=cert, tls_key=key, header_timeout_ms=60_000) as server,
        contextlib.ExitStack() as stack,
    ):
        silent = [stack.enter_context(dial(server.url)) for _ in range(6)]
        silent[1].sendall(b"\x16\x03\x01\x02\x00")  # begins, and goes no further
        wait_for(server, OPEN, 6)
        with httpx.Client(verify=trusting(authority), timeout=HANG_SECONDS) as client:
            assert client.get(server.url + "/livez").status_code == 200
        assert read_end(silent[0]) == b""
        assert server.metric('milkweed_http_connections_closed_total{reason="evicted"}', server.metrics_url) == 1
        wait_for(server, OPEN, 5)
        silent[1].close()
        wait_for(server, OPEN, 4)


def test_where_there_is_no_room_it_is_said_over_tls(serving: Any, authority: Authority, tmp_path: Path) -> None:
    cert, key = authority.issue("server")
    hold = tmp_path / "hold"
    with crowded(serving, 1, tls_cert=cert, tls_key=key, prelude=HELD.format(path=str(hold))) as server:
        hold.touch()
        verify = trusting(authority)
        with (
            httpx.Client(verify=verify, timeout=HANG_SECONDS) as busy,
            httpx.Client(verify=verify, timeout=HANG_SECONDS) as late,
        ):
            answers: list[int] = []
            asking = threading.Thread(
                target=lambda: answers.append(busy.post(server.url + "/classify", content=IMAGE).status_code)
            )
            asking.start()
            wait_for(server, IN_FLIGHT, 1)
            assert late.post(server.url + "/classify", content=IMAGE).json()["error"]["code"] == "overloaded"
            assert late.get(server.url + "/livez").status_code == 200
            hold.unlink()
            asking.join()
            assert answers == [200]


@pytest.mark.slow
def test_who_reads_slowly_over_tls_gets_the_whole_answer(serving: Any, authority: Authority) -> None:
    cert, key = authority.issue("server")
    received, begun = 0, time.monotonic()
    with (
        crowded(serving, 8, tls_cert=cert, tls_key=key, prelude=BIG) as server,
        dial(server.url, trusting(authority)) as client,
    ):
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: big\r\nConnection: close\r\n\r\n")
        while data := client.recv(16_384):
            received += len(data)
            time.sleep(0.002)
    assert received > BIG_LENGTH
    assert time.monotonic() - begun > 1.0  # twice as long as it may read nothing


def test_the_end_does_not_wait_for_idle_connections(serving: Any, authority: Authority) -> None:
    """TLS has each side say that it closes; who is idle may never hear it."""
    cert, key = authority.issue("server")
    settings = {"tls_cert": cert, "tls_key": key, "drain_seconds": 10 * HANG_SECONDS}
    with serving(**settings) as server, dial(server.wait_ready(), trusting(authority)):
        server.terminate()
        assert server.exit() == 0
