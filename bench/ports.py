"""Ports that are free."""

import random
import socket
from contextlib import ExitStack

PORTS = range(12_000, 32_000)
"""Ports below those that Linux gives to clients: a client could take such a port, even by connecting to it while nobody
listens there, and a server that is started again could not have it."""


def free_port(following: int = 0) -> int:
    """A port of PORTS nobody listens on now, nor on so many that follow it."""
    while True:
        port = random.SystemRandom().choice(PORTS[: -1 - following])  # what a test seeds must not choose it
        with ExitStack() as held:
            try:
                for number in range(port, port + following + 1):
                    held.enter_context(socket.create_server(("127.0.0.1", number)))
            except OSError:
                continue
            return port
