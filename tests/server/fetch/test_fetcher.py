"""Fetches over a real connection: what arrives whole, and what is refused before or after a connection."""

import logging

import pytest

from milkweed.server.fetch.addresses import is_public
from milkweed.server.fetch.fetcher import Fetcher

from .fetching import BODY, LIMIT, fetch
from .origin import BAD_CERTIFICATE, HOST, OTHER, PLAIN, Origin, ok, redirect
from .test_addresses import PRIVATE


async def test_an_image_arrives_as_it_is(origin: Origin) -> None:
    origin.answers["/a.jpg?x=1"] = ok(BODY, "Content-Type: image/jpeg", "Set-Cookie: a=b")
    fetched = await fetch(origin.fetcher(), f"https://{HOST}/a.jpg?x=1#part")
    assert (fetched.outcome, fetched.held) == (BODY, len(BODY))
    [head] = origin.heads
    assert head.splitlines() == [
        *("GET /a.jpg?x=1 HTTP/1.1", f"Host: {HOST}", "Accept: */*", "Accept-Encoding: identity"),
        *("User-Agent: milkweed", "Connection: close", ""),
    ]


async def test_a_bucket_and_plain_http_where_they_are_listed(origin: Origin) -> None:
    origin.answers["/a"] = ok(BODY)
    for url in ("https://bucket.store.example.com/a", f"http://{PLAIN}/a"):
        assert (await fetch(origin.fetcher(), url)).outcome == BODY


@pytest.mark.parametrize("size", [0, 1, LIMIT])
async def test_chunks_are_put_together(origin: Origin, size: int) -> None:
    body = (BODY * 2)[:size]
    pieces = [body[start : start + 4000] for start in range(0, size, 4000)]
    framed = b"".join(b"%x;name=value\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    origin.answers["/a"] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + framed
    fetched = await fetch(origin.fetcher(), f"https://{HOST}/a")
    assert (fetched.outcome, fetched.held) == (body, size)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        *(ok(b"x", status=f"{status} Odd") for status in (201, 204, 206, 304, 400, 401, 404, 500, 503)),
        ok(bytes(LIMIT + 1)),
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\nx" % (LIMIT + 1),  # before anything of it is read
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nless",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nmore than that",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nabcd",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nup to the end",
        CHUNKED + b"\r\n%x\r\n%b\r\n0\r\n\r\n" % (LIMIT + 1, bytes(LIMIT + 1)),
        CHUNKED + b"\r\n4\r\nabcd\r\n",
        CHUNKED + b"\r\nzz\r\nabcd\r\n0\r\n\r\n",
        CHUNKED + b"\r\n" + b"1\r\nx\r\n" * 10_000 + b"0\r\n\r\n",  # far more frame than picture
        CHUNKED + b"\r\n4;" + b"x" * 100_000 + b"\r\nabcd\r\n0\r\n\r\n",
        CHUNKED + b"\r\n4\r\nabcd\r\n0\r\nContent-Length: 4\r\n\r\n",
        ok(b"abcd", "Content-Encoding: gzip"),
        ok(b"abcd", "Content-Encoding: br"),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n",
        ok(b"abcd", "X-Long: " + "x" * 100_000),
        ok(b"abcd", *(f"X-{number}: x" for number in range(10_000))),
        b"HTTP/1.1 100 Continue\r\n\r\n" + ok(b"abcd"),
        b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\nabcd",
        ok(b"abcd") + ok(b"abcd"),
        b"HTTP/1.1 200 OK\nContent-Length: 4\n\nabcd",
        b"HTTP/9.9 200 OK\r\nContent-Length: 4\r\n\r\nabcd",
        b"\xff\xd8\xff\xe0 no head",
        b"",
        redirect(""),
        redirect(f"https://{HOST}/end", status=300),
        ok(b"", f"Location: https://{HOST}/end", f"Location: https://{OTHER}/end", status="302 Found"),
        redirect("https://localhost/a"),
        redirect("https://127.0.0.1/a"),
        redirect("http://169.254.169.254/latest/meta-data/"),
        redirect("https://elsewhere.example/a"),
        redirect(f"http://{HOST}/end"),
        redirect(f"https://user@{HOST}/end"),
        redirect(f"https://{HOST}:8443/end"),
        redirect("file:///etc/passwd"),
    ],
    ids=lambda answer: answer[:60].decode("latin-1"),
)
async def test_every_other_answer_is_the_same_error(origin: Origin, answer: bytes) -> None:
    origin.answers |= {"/a": answer, "/end": ok(BODY)}
    assert (await fetch(origin.fetcher(), f"https://{HOST}/a")).failed
    assert origin.connections == 1


async def test_redirects_are_followed_three_times(origin: Origin) -> None:
    origin.answers |= {
        "/1": redirect("/2", status=301),
        "/2": redirect(f"https://{OTHER}/3", status=307),
        "/3": redirect(f"http://{PLAIN}/4", status=308),
        "/4": ok(BODY),
        "/0": redirect("1", status=303),
    }
    assert (await fetch(origin.fetcher(), f"https://{HOST}/1")).outcome == BODY
    assert origin.looked_up == {HOST: 2, OTHER: 1, PLAIN: 1}  # once for each connection
    assert (await fetch(origin.fetcher(), f"https://{HOST}/0")).failed


async def test_the_address_of_a_redirect_is_looked_at_too(origin: Origin) -> None:
    origin.answers["/a"] = redirect(f"https://{OTHER}/a")

    def resolver(host: str, port: int) -> list[tuple[str, int]]:
        return origin.resolve(host, port) if host == HOST else [("127.0.0.2", origin.port)]

    assert (await fetch(origin.fetcher(resolver=resolver), f"https://{HOST}/a")).failed
    assert origin.connections == 1


@pytest.mark.parametrize("address", PRIVATE)
async def test_no_address_is_connected_to_unless_all_are_public(origin: Origin, address: str) -> None:
    origin.answers["/a"] = ok(BODY)
    for addresses in ([address], ["8.8.8.8", address], [address, "2606:4700::1111"]):
        origin.addresses = addresses
        assert (await fetch(origin.fetcher(public=is_public), f"https://{HOST}/a")).failed
    assert origin.connections == 0


async def test_a_name_without_addresses_or_that_cannot_be_resolved_fails(origin: Origin) -> None:
    def missing(host: str, port: int) -> list[tuple[str, int]]:
        raise OSError(f"{host} is not known")

    assert (await fetch(origin.fetcher(resolver=missing), f"https://{HOST}/a")).failed
    origin.addresses = []
    assert (await fetch(origin.fetcher(), f"https://{HOST}/a")).failed


async def test_the_address_that_was_looked_at_is_the_one_connected_to(origin: Origin) -> None:
    """A name that changes its mind finds nobody who asks it again."""
    origin.answers["/a"] = ok(BODY)
    answers = iter([[("127.0.0.1", origin.port)]])  # a second question would end it
    looked_at: list[str] = []

    def public(address: str) -> bool:
        looked_at.append(address)
        return True

    fetcher = origin.fetcher(resolver=lambda host, port: next(answers), public=public)
    assert (await fetch(fetcher, f"https://{HOST}/a")).outcome == BODY
    assert looked_at == ["127.0.0.1"]


async def test_the_next_address_is_tried_where_one_refuses(origin: Origin) -> None:
    origin.answers["/a"] = ok(BODY)
    fetcher = origin.fetcher(resolver=lambda host, port: [("127.0.0.1", 1), ("127.0.0.1", origin.port)])
    assert (await fetch(fetcher, f"https://{HOST}/a")).outcome == BODY


async def test_a_certificate_must_be_the_names(origin: Origin) -> None:
    origin.answers["/a"] = ok(BODY)
    assert (await fetch(origin.fetcher(), f"https://{BAD_CERTIFICATE}/a")).failed
    stranger = Fetcher(frozenset({("https", HOST)}), resolver=origin.resolve, public=lambda _: True)  # real authorities
    assert (await fetch(stranger, f"https://{HOST}/a")).failed
    assert (origin.connections, origin.heads) == (2, [])


async def test_a_server_that_does_not_speak_tls_or_http_fails(origin: Origin) -> None:
    fetcher = origin.fetcher(resolver=lambda host, port: [("127.0.0.1", origin.plain_port)], seconds=0.2)
    assert (await fetch(fetcher, f"https://{HOST}/a")).failed
    fetcher = origin.fetcher(resolver=lambda host, port: [("127.0.0.1", origin.port)])
    assert (await fetch(fetcher, f"http://{PLAIN}/a")).failed


async def test_why_is_in_the_log_for_whoever_wants_it(origin: Origin, caplog: pytest.LogCaptureFixture) -> None:
    origin.answers["/secret?signature=abc"] = ok(b"x", status="404 Not Found")
    with caplog.at_level(logging.DEBUG, "milkweed.fetch"):
        await fetch(origin.fetcher(), f"https://{HOST}/secret?signature=abc")
    [record] = caplog.records
    assert record.event == {"host": HOST, "why": "FetchError: status 404"}  # type: ignore[attr-defined]


def test_authorities_that_are_not_there_are_an_error_of_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such/file")
    with pytest.raises(ValueError, match="fetch_hosts: SSL_CERT_FILE"):
        Fetcher(frozenset({("https", HOST)}))
