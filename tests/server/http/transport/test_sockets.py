"""Sockets that listen: who is dropped, and for how many connections there are files."""

import errno
import logging
import resource
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from milkweed.server.http.transport.sockets import (
    OTHER_FILES,
    RELAYED_FILES,
    accept_all,
    allow_files,
    drop_newcomers,
    listen,
)

from ....support.waiting import HANG_SECONDS


@pytest.fixture(params=["127.0.0.1", "::1"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    try:
        made = listen(request.param, 0)
    except OSError as error:
        pytest.skip(str(error))
    with made:
        yield made


def test_drop_newcomers_drops_new_clients_and_keeps_connected_ones(listener: socket.socket) -> None:
    address = listener.getsockname()[:2]
    with socket.create_connection(address, timeout=HANG_SECONDS) as before:
        assert drop_newcomers(listener)
        with pytest.raises(TimeoutError):
            socket.create_connection(address, timeout=0.2)
        [accepted] = accept_all(listener)
        with accepted:
            before.sendall(b"x" * 100_000)
            accepted.settimeout(HANG_SECONDS)
            received = 0
            while received < 100_000:
                received += len(accepted.recv(65_536))
            accepted.sendall(b"y")
            assert before.recv(1) == b"y"


class Old(socket.socket):
    def setsockopt(self, *arguments: object) -> None:  # type: ignore[override]
        raise OSError(92, "Protocol not available")


def test_drop_newcomers_is_false_where_the_kernel_cannot() -> None:
    with Old() as old:
        assert not drop_newcomers(old)


@pytest.mark.parametrize(
    ("hard", "wanted", "most"),
    [
        (resource.RLIM_INFINITY, 4096, 4096),
        (100_000, 4096, 4096),
        (1024, 4096, 1024 - OTHER_FILES),
        (200, 4096, 50),
        (1024, 10, 10),
    ],
)
@pytest.mark.parametrize("each", [1, RELAYED_FILES])
def test_allow_files_allows_no_more_connections_than_files(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, hard: int, wanted: int, most: int, each: int
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda what: (100, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda what, limits: asked.append(limits))
    most = wanted if most == wanted else most // each
    with caplog.at_level(logging.WARNING):
        assert allow_files(wanted, each) == most
    assert asked == [(wanted * each + OTHER_FILES if most == wanted else hard, hard)]
    assert (f"max_connections is {most}, not {wanted}" in caplog.text) == (most < wanted)


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EMFILE, errno.ECONNABORTED])
def test_accept_all_returns_what_was_accepted_before_an_error(number: int) -> None:
    class Listener:
        def __init__(self) -> None:
            self.waiting: list[Any] = ["first", "second"]

        def setblocking(self, flag: bool) -> None:
            assert not flag

        def listen(self, backlog: int) -> None:
            assert backlog == 0

        def accept(self) -> tuple[Any, str]:
            if not self.waiting:
                raise OSError(number, "no")
            return self.waiting.pop(0), "address"

    assert accept_all(Listener()) == ["first", "second"]  # type: ignore[arg-type, comparison-overlap]
