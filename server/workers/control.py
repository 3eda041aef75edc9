"""Control: how the supervisor tells its processes what to do. Each has a socket to it, which ends when it ends."""

import asyncio
import contextlib
import faulthandler
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from ..logs import configure_logs
from ..settings import Settings

READY = b"ready"


class Start(msgspec.Struct, kw_only=True):
    """What a process is told at its start. Files are numbers of open ones that it inherits.

    Args:
        address: where the engine's process listens for workers.
        worker: its number; -1 for the engine's process.
        board, buckets: shared memory.
        listener: of the HTTP port for a worker, of `address` for the engine's process.
        url: where the service answers.
    """

    settings: dict[str, Any]
    bundles: dict[str, str]
    address: str
    worker: int
    board: int
    buckets: int
    listener: int
    url: str

    @property
    def paths(self) -> dict[str, Path]:
        """The bundles' places."""
        return {name: Path(path) for name, path in self.bundles.items()}


def plain(settings: Settings, **changed: Any) -> dict[str, Any]:
    """Settings as another process can read them, some of them changed."""
    return {**settings.model_dump(mode="json"), **changed}


def begin(file: int) -> tuple[Start, Settings, socket.socket]:
    """The first thing a process of the supervisor's does: hear what it shall be, and have its log.

    Args:
        file: number of its control socket.

    Raises:
        SystemExit: the supervisor has gone already.
    """
    control = socket.socket(fileno=file)
    try:
        start, settings = told(control)
    except EOFError:
        raise SystemExit(1) from None
    configure_logs(settings.log_level)
    with contextlib.suppress(OSError, ValueError):  # stderr may be no file
        faulthandler.enable()
    return start, settings, control


def told(control: socket.socket) -> tuple[Start, Settings]:
    """The first line; waits for it.

    Raises:
        EOFError: the supervisor has gone already.
    """
    line = b""
    while not line.endswith(b"\n"):
        # One byte at a time: what comes behind it is an order.
        byte = control.recv(1)
        if not byte:
            raise EOFError("the supervisor has gone")
        line += byte
    start = msgspec.json.decode(line, type=Start)
    return start, Settings(**start.settings)


class Orders(asyncio.Protocol):
    """The supervisor's words as calls.

    Args:
        orders: by word; a word may bring a number of seconds. `stop` is also called when the supervisor has gone.
    """

    def __init__(self, orders: Mapping[str, Callable[[float], None]]) -> None:
        self._orders = orders
        self._transport: asyncio.WriteTransport | None = None
        self._rest = b""

    @classmethod
    async def take(cls, control: socket.socket, orders: Mapping[str, Callable[[float], None]]) -> "Orders":
        """Listen to it from now on."""
        control.setblocking(False)
        _, protocol = await asyncio.get_running_loop().create_connection(lambda: cls(orders), sock=control)
        return protocol

    def say_ready(self) -> None:
        """Tell the supervisor that the models are warm."""
        if self._transport is not None:
            self._transport.write(READY + b"\n")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._orders["stop"](0.0)

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            word, _, number = line.decode("ascii").partition(" ")
            self._orders[word](float(number or 0))
