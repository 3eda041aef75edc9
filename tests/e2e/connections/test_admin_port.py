"""The admin port keeps the rules of the service's port: TLS, limits and deadlines."""

import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from milkweed.bench.ports import free_port

from ...support.authority import Authority, needs_openssl, trusting
from ...support.waiting import HANG_SECONDS
from .raw_client import LITTLE_PATIENCE, code_of, dial, read_end, trickling

PUT = b"PUT /v1/aliases/a HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(scope="module")
def admin(serving: Any) -> Iterator[Any]:
    """A server of little patience; `url` is its admin port's."""
    port = free_port()
    with serving(admin_port=port, **LITTLE_PATIENCE) as server:
        server.wait_ready()
        server.url = f"http://127.0.0.1:{port}"
        yield server


@pytest.mark.slow
def test_slow_and_greedy_clients_are_refused(admin: Any) -> None:
    with dial(admin.url) as client:
        client.sendall(PUT + b"X-Slow: ")
        with trickling(client, b"a"):
            assert code_of(read_end(client)) == (408, "request_timeout")
    with dial(admin.url) as client:
        client.sendall(PUT + b"Content-Length: 1000\r\n\r\n{")
        with trickling(client, b" "):
            assert code_of(read_end(client)) == (408, "request_timeout")
    with dial(admin.url) as client:
        client.sendall(PUT + b"".join(b"X-%d: y\r\n" % number for number in range(200)) + b"\r\n")
        assert code_of(read_end(client)) == (431, "headers_too_large")
    with dial(admin.url) as client:
        client.sendall(b"GET / HTTP/9.9\r\n\r\n")
        assert code_of(read_end(client)) == (400, "bad_request")
    answer = httpx.put(admin.url + "/v1/aliases/a", content=bytes(100_000))
    assert answer.status_code == 413
    assert "the limit is 65536" in answer.json()["error"]["message"]
    assert httpx.get(admin.url + "/v1/aliases").json() == {"aliases": []}


def test_a_client_that_leaves_in_its_body_is_not_logged(admin: Any) -> None:
    with dial(admin.url) as client:
        client.sendall(PUT + b"Content-Length: 1000\r\n\r\n{")
    assert httpx.put(admin.url + "/v1/aliases/a", json={"model": "tiny"}).status_code == 200
    assert httpx.delete(admin.url + "/v1/aliases/a").status_code == 200
    assert [line for line in admin.log if '"level": "info"' not in line] == []


@needs_openssl
@pytest.mark.slow
def test_admin_port_speaks_tls_as_the_service_does(
    serving: Any, tmp_path_factory: pytest.TempPathFactory, tiny_bundle: Path, tmp_path: Path
) -> None:
    authority = Authority(tmp_path_factory.mktemp("tls"), "authority")
    cert, key = authority.issue("server")
    port = free_port()
    shutil.copytree(tiny_bundle, tmp_path / "tiny")
    settings = {"tls_cert": cert, "tls_key": key, "tls_client_ca": authority.cert}
    with serving(bundles={}, repository=tmp_path, admin_port=port, **settings) as server:
        server.wait_ready()
        url = f"https://127.0.0.1:{port}"
        verify = trusting(authority, authority.issue("client"))
        with httpx.Client(verify=verify, base_url=url, timeout=HANG_SECONDS) as client:
            assert client.get("/v1/repository").json()["models"][0]["serves"]
            assert client.post("/v1/models/tiny/load").status_code == 200
            with pytest.raises(httpx.RemoteProtocolError):
                httpx.get(f"http://127.0.0.1:{port}/v1/repository")
            with (
                httpx.Client(verify=trusting(authority), base_url=url, timeout=HANG_SECONDS) as stranger,
                pytest.raises((httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError, ssl.SSLError)),
            ):
                stranger.get("/v1/repository")
            server.terminate()
            assert server.exit() == 0
        assert [line for line in server.log if '"level": "error"' in line or "Traceback" in line] == []
