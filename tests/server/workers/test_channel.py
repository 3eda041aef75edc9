"""The channel: messages come whole and in order however the bytes are cut; nonsense ends it."""

import asyncio
import socket
from typing import Any

import pytest

from milkweed.loaders.info import ArrayHeader, ImageInfo
from milkweed.server.workers import messages
from milkweed.server.workers.channel import Channel

pytestmark = pytest.mark.anyio


def submit(id: int) -> messages.Submit:
    info = ImageInfo("NPY", 3, 4, "RGB", array=ArrayHeader("|u1", (4, 3, 3), False, 128))
    return messages.Submit(
        id=id,
        model="m#1",
        top_k=5,
        deadline=1.5,
        places=3,
        source=None,
        priority="bulk",
        images=[(0, 10, ImageInfo("JPEG", 500, 375, "RGB", scans=3)), (2, 20, info)],
        inline=bytes(range(256)) * id,
        unseen_seconds=0.25,
    )


class Listener(Channel):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.ended = asyncio.Event()
        super().__init__(messages.decode_from_worker, self.heard.append, self.ended.set)


async def connected() -> tuple[socket.socket, Listener]:
    ours, theirs = socket.socketpair()
    listener = Listener()
    await asyncio.get_running_loop().create_connection(lambda: listener, sock=theirs)
    ours.setblocking(False)
    return ours, listener


@pytest.mark.parametrize("piece", [1, 3, 1 << 20])
async def test_messages_come_whole_and_in_order(piece: int) -> None:
    ours, listener = await connected()
    said = [submit(1), messages.Forget(7), submit(3), messages.Released("m#1")]
    whole = b"".join(len(body).to_bytes(4, "little") + body for body in map(messages.encode, said))
    for start in range(0, len(whole), piece):
        await asyncio.get_running_loop().sock_sendall(ours, whole[start : start + piece])
        await asyncio.sleep(0)
    while len(listener.heard) < len(said):
        await asyncio.sleep(0.001)
    assert listener.heard == said
    ours.close()
    await listener.ended.wait()
    assert not listener.is_open


async def test_nonsense_ends_the_channel() -> None:
    ours, listener = await connected()
    await asyncio.get_running_loop().sock_sendall(ours, b"\5\0\0\0hello")
    await listener.ended.wait()
    assert listener.heard == []
    ours.close()
