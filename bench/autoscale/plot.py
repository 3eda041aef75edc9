"""The picture of a day: replicas, refusals, queue wait, one burst from near; and what a target costs and saves."""

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

from ...models.report.drawing import PICTURE, figure, render

BLUE, RED, GREEN, PINK, ORANGE, _ = PICTURE.palette.series
GREY = "#999999"


def plot(document: Mapping[str, Any]) -> bytes:
    """The document as PNG, the same bytes for the same document.

    Raises:
        ImportError: matplotlib is not installed.
    """
    return render(lambda: _draw(document), ".png")


def _draw(document: Mapping[str, Any]) -> Any:
    drawn = figure(PICTURE, 1150)
    axes = drawn.subplot_mosaic([["day"], ["refused"], ["wait"], ["near"], ["starts"]], height_ratios=[2.4, 1, 1, 2, 2])
    _day(axes, document)
    _near(axes["near"], document)
    _starts(axes["starts"], document.get("starts", []))
    drawn.suptitle(f"Simulated: up to {document['replicas']:,} replicas of {document['capacity']:.3g} images/s")
    return drawn


def _day(axes: Mapping[str, Any], document: Mapping[str, Any]) -> None:
    series, events = document["series"], document["day"]["events"]
    hours = [minute / 60 for minute in range(len(series["offered"]))]
    _replicas(axes["day"], hours, document, slice(None))
    names = "; ".join(f"({place}) {each['name']}" for place, each in enumerate(events, 1))
    axes["day"].set_title(fill(f"A day: {names}", 90), fontsize=11)
    both = zip(series["refused"], series["offered"], strict=True)
    shares = [100 * lost / come if come else 0.0 for lost, come in both]
    axes["refused"].fill_between(hours, shares, color=RED)
    axes["refused"].set_ylabel("refused, %")
    axes["wait"].plot(hours, [1e3 * seconds for seconds in series["queue-wait"]], color=PINK, lw=1)
    axes["wait"].set_ylabel("queue wait\np95, ms")
    axes["wait"].set_xlabel("hours")
    for name in ("day", "refused", "wait"):
        axes[name].set_xlim(0, max(hours[-1], 1 / 60))
        _plain(axes[name])
    for place, event in enumerate(events, 1):
        axes["day"].annotate(f"({place})", (event["at_hours"], 0), (-14, 3), textcoords="offset points", weight="bold")


def _near(axis: Any, document: Mapping[str, Any]) -> None:
    """The first burst, from ten minutes before it."""
    events = document["day"]["events"]
    begin = max(0, round(60 * events[0]["at_hours"]) - 10) if events else 0
    part = slice(begin, begin + 45)
    _replicas(axis, [float(minute) for minute in range(-10, 35)], document, part)
    axis.set_xlabel("minutes from (1)")
    _plain(axis)


def _replicas(axis: Any, clock: Sequence[float], document: Mapping[str, Any], part: slice) -> None:
    series = document["series"]
    needed = [offered / document["capacity"] for offered in series["offered"][part]]
    for values, colour, label in ((series["wanted"][part], GREY, "wanted"), (series["ready"][part], GREEN, "ready"),
                                  (needed, BLUE, "needed at full load")):  # fmt: skip
        axis.plot(clock[: len(values)], values, color=colour, lw=1.1, label=label)
    axis.set_ylabel("replicas")
    axis.legend(fontsize=11, loc="upper left", ncols=3)
    axis.margins(y=0.2)


def _starts(axis: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Each target as a point: to the right costs more, upwards refuses more."""
    for seconds, colour in zip(sorted({row["start_seconds"] for row in rows}), (BLUE, ORANGE, RED), strict=False):
        mine = [row for row in rows if row["start_seconds"] == seconds]
        points = [(row["hours_ratio"], 100 * (1 - row["on_time"])) for row in mine]
        axis.plot(*zip(*points, strict=True), "o-", color=colour, ms=4, lw=1, label=f"a pod starts in {seconds:g} s")
        for row, point in zip(mine, points, strict=True):
            axis.annotate(f"{row['load']:g}", point, (4, 3), textcoords="offset points", fontsize=11)
    axis.set_title("Three hours of bursts, by load aimed at", loc="left", fontsize=11)
    axis.set_xlabel("replica-hours, times the oracle's")
    axis.set_ylabel("refused, %")
    if rows:
        axis.legend(fontsize=11)
    axis.margins(y=0.15)
    _plain(axis)


def _plain(axis: Any) -> None:
    axis.set_ylim(bottom=0)
