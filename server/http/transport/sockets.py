"""Opens and closes the sockets a server listens on, and makes sure of enough files for its connections."""

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

# So many files may be open beside the connections: models, caches, logs, other ports, connections on their way out.
OTHER_FILES = 256

# A connection takes so many files where it may be one of gRPC's: the client's, both ends of a Unix socket, and that of
# another client who waits to be relayed.
RELAYED_FILES = 4

_SO_ATTACH_FILTER = 26  # of Linux

# Classic BPF, which needs no privilege and sees a segment from its TCP header on; byte 13 of that has the flags. A
# segment with SYN and without ACK is dropped. Accepted sockets inherit the filter, and never get such a segment.
_DROP_SYN = (
    (0x30, 0, 0, 13),  # load the byte
    (0x54, 0, 0, 0x12),  # and it with SYN | ACK
    (0x15, 0, 1, 0x02),  # is it SYN?
    (0x06, 0, 0, 0),  # then take nothing of it
    (0x06, 0, 0, 0xFFFFFFFF),  # else all
)


class PortError(OSError):
    """A port that cannot be listened on; the message is one line, `errno` the system's."""

    @property
    def in_use(self) -> bool:
        return self.errno == errno.EADDRINUSE


def listen(host: str, port: int, what: str = "port") -> socket.socket:
    """A bound, listening socket that nobody accepts from yet. `what`: the error's word for the port. Raises PortError,
    which names the address and what is wrong with it."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        failure = PortError(f"cannot listen on {host} {what} {port}: {reason_of(error)}")
        failure.errno = error.errno
        raise failure from None


def url_of(listener: socket.socket, tls: bool) -> str:
    """The URL of a service that listens there."""
    host, port = listener.getsockname()[:2]
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def reason_of(error: OSError) -> str:
    """The system's text of an error: socket.create_server adds to it, and getaddrinfo has numbers of its own."""
    if error.errno is None or isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    return os.strerror(error.errno)


def files_for(connections: int, files: int) -> int:
    """How many files a server with so many connections, of so many `files` each, may open."""
    return connections * files + OTHER_FILES


def allow_files(connections: int, files: int) -> int:
    """Let the process have so many `files` for a connection, as far as it may decide that itself. Returns the number of
    connections that there are files for. One more could be neither accepted nor refused, and nothing else could open a
    file."""
    needed = files_for(connections, files)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return connections
    possible = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))
    if possible == needed:
        return connections
    most = max(1, max(possible - OTHER_FILES, possible // 4) // files)
    logger.warning("max_connections is %s, not %s: only %s files may be open", most, connections, possible)
    return most


def drop_newcomers(listener: socket.socket) -> bool:
    """Have the kernel drop new attempts to connect as if they were lost on the way.

    A client tries again a second later, when the port is closed or another server has it. Connections that are half
    made go on, and can be accepted.

    Returns:
        False where the kernel cannot do that.
    """
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in _DROP_SYN))
    try:
        filter_ = struct.pack("@HP", len(_DROP_SYN), ctypes.addressof(program))
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_)
    except OSError:
        return False
    return True


def accept_all(listener: socket.socket) -> list[socket.socket]:
    """Accept the connections that wait; closing the listener would reset them."""
    listener.setblocking(False)
    listener.listen(0)  # from now on the kernel takes hardly anybody in; those it does are reset by the close
    accepted = []
    with contextlib.suppress(OSError):  # nobody waits any more, or no file is left to accept into
        while True:
            accepted.append(listener.accept()[0])
    return accepted
