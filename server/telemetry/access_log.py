"""One log line for a request that was answered: a share of them, and all that failed by a fault of ours."""

import logging
import random

from ..config.settings import Settings
from .context import RequestContext
from .logs import ACCESS

logger = logging.getLogger(ACCESS)

# Refusals that are no fault: under load there may be thousands a second.
_QUIET = frozenset({"overloaded", "draining"})


class AccessLog:
    """Writes the lines. Nothing in them is a client's own words, but for a request id that has passed its check.

    Args:
        share: of the requests that get a line, 0 to 1.
    """

    def __init__(self, share: float) -> None:
        self._share = share

    @classmethod
    def of(cls, settings: Settings) -> "AccessLog | None":
        """The log that the settings ask for; None where it is off."""
        return cls(settings.access_log) if settings.access_log else None

    def note(
        self,
        trace: RequestContext,
        *,
        method: str,
        route: str,
        status: int,
        code: str | None,
        caller: str | None,
        end: float,
    ) -> None:
        """A request is over.

        Args:
            method, route: from closed sets, never what the client wrote.
            status: of HTTP, also where the protocol has another.
            code: the error it ended with.
            caller: by key, else address.
            end: perf_counter seconds.
        """
        failed = status >= 500 and code is not None and code not in _QUIET
        if not failed and random.random() >= self._share:
            return
        request = {
            "method": method,
            "route": route,
            "status": status,
            "code": code,
            "model": trace.model_name or None,
            "images": trace.images,
            "cache": trace.notes.get("cache"),
            "body_bytes": trace.body_bytes,
            "caller": caller,
            "stages_ms": trace.stages_ms(end),
            "total_ms": round((end - trace.started) * 1e3, 3),
        }
        extra = {"request_id": trace.request_id.decode(), "event": request}
        logger.info("%s %s %d", method, route, status, extra=extra)
