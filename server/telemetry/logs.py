"""Writes logs to stderr, as JSON lines with the ids of the request and its trace, or as text for a person."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from ...models.errors import printable
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


class TextFormatter(logging.Formatter):
    """Writes one line for a person: time, level, logger, message, what `extra` brought, then the traceback.

    What a terminal might obey is escaped, since clients' words may be in it.
    """

    def format(self, record: logging.LogRecord) -> str:
        event = getattr(record, "event", {})
        facts = {"request_id": record.request_id, **event} if hasattr(record, "request_id") else event
        time = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        head = f"{time} {record.levelname.lower()} {record.name.removeprefix('milkweed.')}: {record.getMessage()}"
        line = " ".join([head, *(f"{name}={value}" for name, value in facts.items())])
        trace = self.formatException(record.exc_info).splitlines() if record.exc_info else []
        return "\n".join(printable(part) for part in [line, *trace])


def configure_logs(level: str, form: str = "json") -> None:
    """Send all logs of the process to stderr, a line each; libraries log only warnings.

    Args:
        form: json, text, or auto: text where stderr is a terminal.
    """
    handler = logging.StreamHandler(sys.stderr)
    is_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    handler.setFormatter(TextFormatter() if is_text else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "asyncio", "PIL"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger(ACCESS).setLevel(logging.INFO)  # it has a setting of its own
