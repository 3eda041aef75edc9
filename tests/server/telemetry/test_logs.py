"""Logs are JSON lines with the request id and the traceback in them."""

import json
import logging
import sys

import pytest

from milkweed.server.telemetry.logs import JsonFormatter, TextFormatter, configure_logs


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


def test_text_is_a_line_for_a_person_that_no_terminal_obeys() -> None:
    record = logging.LogRecord("milkweed.serve", logging.WARNING, "f", 1, "slow \x1b[2J", (), None)
    record.request_id, record.event = "abc\x07", {"models": 2}
    time, text = TextFormatter().format(record).split(" ", 1)
    assert len(time) == len("23:59:59")
    assert text == "warning serve: slow \\x1b[2J request_id=abc\\x07 models=2"


@pytest.mark.parametrize(
    ("form", "is_terminal", "kind"),
    [
        ("auto", True, TextFormatter),
        ("auto", False, JsonFormatter),
        ("json", True, JsonFormatter),
        ("text", False, TextFormatter),
    ],
)
def test_a_terminal_gets_text_and_all_else_json_unless_told(
    form: str, is_terminal: bool, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", root.handlers[:])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    level = root.level
    configure_logs("info", form)
    (handler,) = root.handlers
    root.setLevel(level)
    assert type(handler.formatter) is kind
