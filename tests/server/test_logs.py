"""Logs are JSON lines with the request id and the traceback in them."""

import json
import logging
import sys

from milkweed.server.logs import JsonFormatter


def test_line_holds_message_id_and_traceback_on_one_line() -> None:
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
