"""Writes logs as JSON lines to stderr, with the ids of the request and its trace."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from .trace_context import current_span

ACCESS = "milkweed.access"
"""The logger of the access log."""


class JsonFormatter(logging.Formatter):
    """Writes one JSON object a line, all in ASCII, so that nothing a client sent can harm a terminal or a line parser.

    It holds time, level, logger, message, the trace id of a traced request, what `extra` brought, the traceback.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        span = current_span.get()
        if span is not None:
            line["trace_id"] = span.trace_hex
        for name in ("request_id", "event"):
            if hasattr(record, name):
                line[name] = getattr(record, name)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logs(level: str) -> None:
    """Send all logs of the process to stderr as JSON lines; libraries log only warnings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "asyncio", "PIL"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger(ACCESS).setLevel(logging.INFO)  # it has a setting of its own
