"""Logs are JSON lines with the request id and the traceback in them."""

import json
import logging
import sys

from milkweed.server.telemetry.logs import JsonFormatter


def test_a_log_line_holds_message_id_and_traceback() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.LogRecord("milkweed.x", logging.ERROR, "f", 1, "failed %d", (3,), sys.exc_info())
    record.request_id = "abc"
    text = JsonFormatter().format(record)
    assert "\n" not in text
    line = json.loads(text)
    assert (line["level"], line["logger"], line["message"]) == ("error", "milkweed.x", "failed 3")
    assert line["request_id"] == "abc"
    assert "two\nlines" in line["traceback"]


def test_a_log_line_is_ascii_whatever_is_in_it() -> None:
    record = logging.LogRecord("milkweed.x", logging.INFO, "f", 1, "\x1b[2J \x9b \u2028 ü \ud800", (), None)
    text = JsonFormatter().format(record)
    assert text.isascii()
    assert text.isprintable()
    assert json.loads(text)["message"] == record.getMessage()
