"""The decode benchmark's tables for people, each within 100 columns."""

from collections.abc import Iterator, Mapping, Sequence
from textwrap import shorten
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table


def tables(report: Mapping[str, Any]) -> Iterator[Table]:
    """A table for each section that was measured."""
    makers = {"rows": _one, "batches": _batches, "damage": _damage}
    for key, make in makers.items():
        if report.get(key):
            yield make(report)
    if skipped := report.get("skipped"):
        yield table("skipped", ("row", "why"), [(name, shorten(why, 60)) for name, why in skipped.items()])


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A table; columns whose name begins with a blank hold numbers and go to the right."""
    made = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        right = column.startswith(" ")
        made.add_column(column.strip(), justify="right" if right else "left", no_wrap=column != columns[-1])
    for row in rows:
        made.add_row(*(f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in row))
    return made


def _one(report: Mapping[str, Any]) -> Table:
    timm = next((row["cpu_ms_per_image"] for row in report["rows"] if row["method"].startswith("timm")), None)
    return table(
        f"one image after the other, 1 thread: {report['images']} images, {report['rounds']} rounds",
        ("method", " CPU ms/image", " median", " images/s", " of timm", " mean off", " max off"),
        [
            (
                row["method"],
                row["cpu_ms_per_image"],
                row["cpu_ms_per_image_median"],
                round(row["images_per_second"]),
                row["cpu_ms_per_image"] / timm if timm else "",
                f"{row['mean_difference_levels']:.4f}",
                round(row["max_difference_levels"]),
            )
            for row in report["rows"]
        ],
    )


def _batches(report: Mapping[str, Any]) -> Table:
    names = ("cpu_ms_per_image", "cpu_ms_per_image_median")
    rates = ("images_per_second", "images_per_second_median")
    return table(
        f"batches: {report['images']} images, {report['rounds']} rounds; CPU time is the whole process's",
        ("loader", " batch", " threads", " CPU ms/image", " median", " images/s", " median"),
        [
            (row["loader"], row["batch"], row["threads"], *map(row.get, names), *(round(row[rate]) for rate in rates))
            for row in report["batches"]
        ],
    )


def _damage(report: Mapping[str, Any]) -> Table:
    names = ("kind", "images", "decode_refused", "check_refused", "agreed", "dali_refused")
    return table(
        "damaged coded data: images refused, and CPU ms of an undamaged one",
        ("damage", " images", " by a decode", " by the check", " agree", " by DALI", " decode ms", " check ms"),
        [(*map(row.get, names), row["decode_cpu_ms"], row["check_cpu_ms"]) for row in report["damage"]],
    )
