"""Waiting for another process to come to something."""

import time
from collections.abc import Callable

LOOK_SECONDS = 0.2


def wait_until(condition: Callable[[], bool], seconds: float, what: str, *, lasting_seconds: float = 0.0) -> None:
    """Look again and again until a condition holds.

    Args:
        what: it is, for the error.
        lasting_seconds: so long without a break.

    Raises:
        RuntimeError: it did not come true in time.
    """
    end = time.monotonic() + seconds
    since: float | None = None
    while (now := time.monotonic()) < end:
        since = (now if since is None else since) if condition() else None
        if since is not None and now - since >= lasting_seconds:
            return
        time.sleep(LOOK_SECONDS)
    raise RuntimeError(f"not within {seconds:g} s: {what}")
