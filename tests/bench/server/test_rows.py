"""The parts of `milkweed bench server` that need no server: bodies, sections' arithmetic, tables, options."""

import io
import json
from base64 import b64decode
from typing import Any

import numpy as np
import pytest

from milkweed.bench.bodies import arrays, jpegs, pictures
from milkweed.bench.load.plan import KINDS, Plan
from milkweed.bench.load.requests import shots
from milkweed.bench.load.samples import Samples, curve, summary, timeline
from milkweed.bench.plots import server as plot
from milkweed.bench.server.sections import growth, no_row_failed
from milkweed.bench.server.tables import COLUMNS, line, others, print_rows


def row(section: str = "load", **changes: Any) -> dict[str, Any]:
    """Make a row as `BenchedServer.row` does."""
    plan = Plan((("127.0.0.1", 1),), "/", (), seconds=1.0, rate=100.0)
    seen = Samples()
    for number in range(100):
        seen.add(number / 100, 0.001 * (number + 1), 0.0001, "200" if number % 10 else "503", True)
    found = {"section": section, "what": "50% of capacity", "server": "npy", "images": 1, **summary(plan, seen)}
    cost = {"cpu_ms_per_request": 0.71, "rss_mb": [800.0, 812.3], "pss_mb": 640.0, "processes": 1}
    drawn = {"timeline": timeline(seen, 0.5)} if section == "overload" else {"curve": curve(seen)}
    return {**found, **cost, **drawn, **changes}


@pytest.mark.parametrize("kind", KINDS)
def test_bodies_hold_their_images(kind: str) -> None:
    images = pictures(32, 3)
    encoded = arrays(images) if kind == "npy" else jpegs(images)
    count = 1 if kind == "raw" else 2
    found = shots(kind, encoded, count)
    good, malformed = [shot for shot in found if shot.good], [shot for shot in found if not shot.good]
    assert len(good) == 3
    assert len({shot.body for shot in found}) == len(found)
    assert {shot.content_type for shot in good} == {shot.content_type for shot in malformed}
    if kind == "raw":
        assert [shot.body for shot in good] == encoded
    elif kind == "multipart":
        assert all(shot.body.count(b"Content-Disposition") == 2 for shot in good)
        assert encoded[0] in good[2].body
    elif kind == "json":
        assert [b64decode(image) for image in json.loads(good[1].body)["images"]] == [encoded[1], encoded[2]]
    else:
        np.testing.assert_array_equal(np.load(io.BytesIO(good[2].body)), np.stack([images[2], images[0]]))


def test_several_images_do_not_fit_a_raw_body() -> None:
    with pytest.raises(ValueError, match="body raw holds one image: 2 images need"):
        shots("raw", [b"x"], 2)


def test_growth_is_the_slope_of_what_settled() -> None:
    memory = [(float(at), 900.0 if at < 20 else 500 + 0.01 * at) for at in range(101)]
    assert growth(memory, rate=50) == pytest.approx(0.01 / 50 * 10_000)
    assert growth(memory[:2], rate=50) is None


def test_complaints_name_the_row_and_the_number() -> None:
    fine = {"good_failed": 0, "wrong_answers": 0, "refusals_without_retry_after": 0, "lost": 0, "client_late": False}
    assert no_row_failed([row(**fine), row("overload", **{**fine, "good_failed": 9})]) == []
    found = no_row_failed([row(**{**fine, "lost": 2, "good_failed": 2}), row("soak", **{**fine, "wrong_answers": 1})])
    assert found == [
        "load (50% of capacity): 2 requests lost",
        "load (50% of capacity): 2 of 100 good requests failed",
        "soak (50% of capacity): 1 wrong answers",
    ]
    bare = {**fine, "refusals_without_retry_after": 3, "client_late": True}
    (refusals, late) = no_row_failed([row("overload", **bare)])
    assert refusals == "overload (50% of capacity): 3 refusals without Retry-After"
    assert "the client was late (p99 0.1 ms)" in late


def test_rows_fit_a_terminal_of_100_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("milkweed.cli.output.PIPE_WIDTH", 100)
    rows = [
        row("capacity", what="multipart 256 connections", rate=None, lateness_ms=None),
        row("overload", what="2 x capacity, deadline told", rate=12_345.6, recovery_seconds=1.57),
        row("malformed", malformed_statuses={"415": 23, "422": 150}, client_late=True, cpu_ms_per_request=None),
    ]
    print_rows({"rows": rows})
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert all(name.strip() in lines[0] for name in COLUMNS)
    assert {"12,346", "0.1!"} <= {word for line in lines for word in line.split()}
    assert sum(line.startswith(("capacity", "overload", "malformed")) for line in lines) == 3


def test_a_row_on_a_line() -> None:
    said = line(row(moved=4, refusals_without_retry_after=10))
    assert said == ("load, 50% of capacity: 90/s, p50 50.0, p99 100.0 ms, 10 x 503, 10 without Retry-After, 4 moved")
    assert others(row("overload", recovery_seconds=None)).endswith("did not recover")
    assert others(row("soak", growth_mb_per_10000_requests=0.02)).endswith("+0.020 MB in 10,000 requests")
    assert others(row("soak", rss_idle_mb=821.4)).endswith("821 MB a minute later")


def test_an_overload_without_an_answer_is_drawn_too() -> None:
    nothing = row("overload", latency_ms=None, timeline=[{"at": 0.0, "statuses": {"timeout": 3}, "p99_ms": None}])
    drawn = plot({"rows": [row(), row("malformed"), row("overload"), nothing]})
    assert [bar.get_height() for bar in drawn.axes[3].patches] == [3.0]


def test_the_picture_holds_the_rows() -> None:
    document = {"rows": [row(rate=200.0), row(rate=100.0), row("overload")], "capacity": 250.0}
    distribution, load, overload, p99 = plot(document).axes
    for drawn in distribution.lines:
        resolved = 100 * (1 - 10 / 90)  # ten of the 90 that were accepted lie beyond
        assert [x for x, _ in drawn.get_xydata()] == [ms for q, ms in row()["curve"] if q <= resolved]
    latency = row()["latency_ms"]
    medians, tails, capacity = load.lines
    assert medians.get_xydata().tolist() == [[100.0, latency["p50"]], [200.0, latency["p50"]]]
    assert tails.get_xydata().tolist() == [[100.0, latency["p99"]], [200.0, latency["p99"]]]
    assert capacity.get_xdata() == [250.0, 250.0]
    heights = [bar.get_height() for bar in overload.patches]
    bins = row("overload")["timeline"]
    assert heights == [found["statuses"][status] / 0.5 for status in ("200", "503") for found in bins]
    assert p99.lines[0].get_xydata().tolist() == [[found["at"] + 0.25, found["p99_ms"]] for found in bins]
    with pytest.raises(ValueError, match="nothing to draw"):
        plot({"rows": [row("capacity", curve=[])]})
