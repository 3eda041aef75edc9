"""Rules with shorter durations: the same rules, of the shipped files all but their durations to the byte."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from milkweed.bench.alerting.durations import shortened, shortened_routes, shortened_rules

SHIPPED = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"
RULE_FILES = sorted((SHIPPED / "rules").glob("*.yml"))


@pytest.mark.parametrize(
    ("duration", "factor", "found"),
    [("5m", 60, "5s"), ("30s", 60, "500ms"), ("1h30m", 60, "90s"), ("3d", 60, "4320s"), ("1ms", 60, "1ms")],
)
def test_a_duration_is_divided(duration: str, factor: float, found: str) -> None:
    assert shortened(duration, factor) == found


def test_only_durations_of_rules_are_divided() -> None:
    text = """
  - record: job:x_y:rate5m
    expr: rate(x{le="5m"}[5m]) / y offset 1h > 10 and max_over_time(z[1h:1m])
  - alert: Slow
    for: 2m
    annotations: {description: "in 15m, for: {{ $value }} [s]"}
"""
    assert (
        shortened_rules(text, 60)
        == """
  - record: job:x_y:rate5m
    expr: rate(x{le="5m"}[5s]) / y offset 60s > 10 and max_over_time(z[60s:3s])
  - alert: Slow
    for: 2s
    annotations: {description: "in 15m, for: {{ $value }} [s]"}
"""
    )
    assert shortened_rules(text, 1) == text


def test_a_window_still_holds_scrapes() -> None:
    assert shortened_rules("expr: rate(x[5m]) offset 5m > min_over_time(y[2s])", 600) == (
        "expr: rate(x[3s]) offset 500ms > min_over_time(y[2s])"
    )


def flat(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The leaves of a document by their place."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flat(inner, (*at, key))
    else:
        yield at, value


@pytest.mark.parametrize("path", RULE_FILES, ids=lambda path: path.stem)
def test_shipped_rules_stay_what_they_are_but_for_durations(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    before, after = (dict(flat(yaml.safe_load(each))) for each in (text, shortened_rules(text, 60)))
    assert before.keys() == after.keys()
    changed = {at for at, value in before.items() if after[at] != value}
    assert {at[-1] for at in changed} <= {"expr", "for"}
    for at, value in before.items():
        if at[-1] == "for":
            assert after[at] == shortened(value, 60)
        elif at[-1] == "expr":
            # Back again, each by hand: what is in brackets, behind `offset`, and nothing else.
            windows = {"[5s]": "[5m]", "[10s]": "[10m]", "[15s]": "[15m]", "[30s]": "[30m]", "[60s]": "[1h]"}
            windows |= {"[360s]": "[6h]", "[1440s]": "[1d]", "[4320s]": "[3d]"}
            windows |= {"offset 60s": "offset 1h", "offset 180s": "offset 3h", "offset 360s": "offset 6h"}
            windows |= {"offset 1440s": "offset 1d"}
            back = after[at]
            for short, long in windows.items():
                back = back.replace(short, long)
            assert back == value


def test_shipped_routes_stay_what_they_are_but_for_durations() -> None:
    text = (SHIPPED / "alertmanager.yml").read_text(encoding="utf-8")
    before, after = (dict(flat(yaml.safe_load(each))) for each in (text, shortened_routes(text, 60)))
    waits = {"resolve_timeout", "group_wait", "group_interval", "repeat_interval"}
    assert {at[-1] for at, value in before.items() if after[at] != value} == waits
    for at, value in before.items():
        if at[-1] in waits:
            assert after[at] == shortened(value, 60)


@pytest.mark.parametrize("path", RULE_FILES, ids=lambda path: path.stem)
def test_promtool_takes_shorter_rules(path: Path, tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool here: Debian has it in prometheus")
    short = tmp_path / path.name
    short.write_text(shortened_rules(path.read_text(encoding="utf-8"), 60), encoding="utf-8")
    told = subprocess.run([promtool, "check", "rules", short], capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
