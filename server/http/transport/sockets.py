"""The sockets a server listens on, and the files it may have open for what comes through them."""

import contextlib
import ctypes
import errno
import logging
import os
import resource
import socket
import struct

logger = logging.getLogger("milkweed.serve")

BACKLOG = 2048

# Files that are open beside the connections: models, caches, logs, the other ports, connections on their way out.
OTHER_FILES = 256


_SO_ATTACH_FILTER = 26  # of Linux

# Classic BPF, which here sees a segment from its TCP header on; the flags are byte 13 of that. Dropped is what has SYN
# and not ACK. It needs no privilege. Accepted sockets inherit it, and never get such a segment.
_DROP_SYN = (
    (0x30, 0, 0, 13),  # load the byte
    (0x54, 0, 0, 0x12),  # and it with SYN | ACK
    (0x15, 0, 1, 0x02),  # is it SYN?
    (0x06, 0, 0, 0),  # then take nothing of it
    (0x06, 0, 0, 0xFFFFFFFF),  # else all
)


class PortError(OSError):
    """A port that cannot be listened on; the message is one line."""

    in_use = False


def listen(host: str, port: int, what: str = "port") -> socket.socket:
    """A bound, listening socket that nobody accepts from yet.

    Args:
        what: the port is for, in the error.

    Raises:
        PortError: names the address and what is wrong with it.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        failure = PortError(f"cannot listen on {host} {what} {port}: {reason_of(error)}")
        failure.in_use = error.errno == errno.EADDRINUSE
        raise failure from None


def url_of(listener: socket.socket, tls: bool) -> str:
    """Where a service answers that listens there."""
    host, port = listener.getsockname()[:2]
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def reason_of(error: OSError) -> str:
    """The system's words for an error; socket.create_server adds its own, getaddrinfo has its own numbers."""
    if error.errno is None or isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    return os.strerror(error.errno)


def files_for(connections: int) -> int:
    """How many files are open at most where so many connections are."""
    return connections + OTHER_FILES


def allow_files(connections: int) -> int:
    """Let the process have a file for each connection, as far as it may decide that itself.

    Returns:
        for how many connections there are files. One more than that could be neither accepted nor refused, and whoever
        else opens a file would fail.
    """
    wanted = files_for(connections)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    possible = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))
    if possible == wanted:
        return connections
    most = max(possible - OTHER_FILES, possible // 4)
    logger.warning("max_connections is %s, not %s: only %s files may be open", most, connections, possible)
    return most


def drop_newcomers(listener: socket.socket) -> bool:
    """Have the kernel drop whoever begins to connect from now on, as if it had not heard it: it is tried again a second
    later, by when the port is closed or another server has it. Who has begun goes on, and can be accepted.

    Returns:
        False where the kernel does not do that.
    """
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in _DROP_SYN))
    try:
        filter_ = struct.pack("@HP", len(_DROP_SYN), ctypes.addressof(program))
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_)
    except OSError:
        return False
    return True


def accept_all(listener: socket.socket) -> list[socket.socket]:
    """The connections that wait to be accepted; closing the listener would reset them."""
    listener.setblocking(False)
    listener.listen(0)  # from here on the kernel takes hardly anybody in: who comes between now and the close is reset
    accepted = []
    with contextlib.suppress(OSError):  # nobody waits any more, or no file is left to accept into
        while True:
            accepted.append(listener.accept()[0])
    return accepted
