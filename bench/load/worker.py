"""The process of one client: reads its plan from stdin, says that it is there, begins when told, writes its samples.

It imports nothing heavy, and is started by `processes.Clients`.
"""

import gc
import os
import pickle
import resource
import struct
import sys
from contextlib import suppress

from .client import run_client

READY = b"ready\n"
BEGIN = struct.Struct("d")

NICE = -10
"""A client that waits for a core measures the machine, not the server; taken where it is allowed."""


def main() -> None:
    """Run one plan. A byte on stdin, or its end, stops the row early."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection each
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    plan = pickle.load(stdin)
    stdout.write(READY)
    stdout.flush()
    (begin,) = BEGIN.unpack(stdin.read(BEGIN.size))
    gc.disable()  # a pause of the client would count as the server's
    pickle.dump(run_client(plan, begin, sys.stdin.fileno()), stdout)


if __name__ == "__main__":
    main()
