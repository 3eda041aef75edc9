"""Writes a log line for a share of the requests, and for all that failed by a fault of ours."""

import logging
import random

from ..config.settings import Settings
from .context import RequestContext
from .logs import ACCESS

logger = logging.getLogger(ACCESS)

# These are not faults: under load there may be thousands a second.
_QUIET = frozenset({"overloaded", "draining"})


class AccessLog:
    """Writes the lines. They hold nothing that a client wrote except a request id that has passed a check. `share`:
    this part of all requests gets a line, 0 to 1."""

    def __init__(self, share: float) -> None:
        self._share = share

    @classmethod
    def of(cls, settings: Settings) -> "AccessLog | None":
        """The access log for the settings; None where it is off."""
        return cls(settings.access_log) if settings.access_log else None

    def note(self, context: RequestContext, *, method: str, route: str, status: int, end: float) -> None:
        """Log a request that is over, or leave it out.

        Args:
            method, route: from closed sets, never what the client wrote.
            end: perf_counter seconds.
        """
        failed = status >= 500 and context.code is not None and context.code not in _QUIET
        if not failed and random.random() >= self._share:
            return
        request = {
            "method": method,
            "route": route,
            "status": status,
            "code": context.code,
            "model": context.model_name or None,
            "images": context.images,
            "body_bytes": context.body_bytes,
            "caller": context.caller,
            "stages_ms": context.stages_ms(end),
            "total_ms": round((end - context.started) * 1e3, 3),
        }
        extra = {"request_id": context.request_id.decode(), "event": request}
        logger.info("%s %s %d", method, route, status, extra=extra)
