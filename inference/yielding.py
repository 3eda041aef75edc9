"""Lets threads with long work in Python pause, so that the threads that compute get Python's lock."""

import threading
import time

PAUSE_SECONDS = 0.002

_thread = threading.local()


def mark_yielding_thread() -> None:
    """From now on `give_way` pauses the calling thread."""
    _thread.yields = True


def give_way() -> None:
    """Sleep for a moment on a marked thread, do nothing on any other; long work calls this about every millisecond.

    While a thread goes on without a pause, the engine waits up to a switch interval for Python's lock before each
    operation of a forward.
    """
    if getattr(_thread, "yields", False):
        time.sleep(PAUSE_SECONDS)
