"""Where the CPU time of a request goes, of one document of `bench http`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..models.report.drawing import PICTURE, figure, save_picture

PARTS = {"decode": "decode", "forward": "forward", "overhead": "server itself"}


def plot(document: Mapping[str, Any], out: Path) -> Path:
    """Write the picture; the format is the name's.

    Raises:
        ValueError: the name is of no picture.
        ImportError: matplotlib is not installed.
    """
    return save_picture(lambda: draw(document), out)


def draw(document: Mapping[str, Any]) -> Any:
    """The figure: one bar, each part with its name and its ms."""
    drawn = figure(PICTURE, 180)
    axis = drawn.subplots()
    left = 0.0
    for place, ((key, name), color) in enumerate(zip(PARTS.items(), PICTURE.palette.series, strict=False)):
        ms = document[f"{key}_cpu_ms_per_request"]
        axis.barh(0, ms, left=left, color=color, height=0.5)
        # Thin parts have no room for their names: above and below in turns.
        above = 0.32 if place % 2 == 0 else -0.32
        text = f"{name} {ms:.2f}"
        axis.annotate(text, (left + ms / 2, above), ha="center", va="bottom" if above > 0 else "top", color=color)
        left += ms
    axis.set_ylim(-0.7, 0.7)
    axis.set_yticks([])
    axis.spines["left"].set_visible(False)
    axis.grid(axis="y", visible=False)
    axis.set_xlabel("CPU ms a request")
    latency = document["latency_ms"]
    axis.set_title(
        f"{document['requests_per_second']:,.0f} requests/s over {document['concurrency']} connections, "
        f"p50 {latency['p50']:.1f} ms, p99 {latency['p99']:.1f} ms"
    )
    return drawn
