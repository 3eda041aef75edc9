"""The decode benchmark's tables for people, each within 100 columns."""

from collections.abc import Iterator, Mapping, Sequence
from textwrap import shorten
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ..cuda.images.isolation import GOAL


def tables(report: Mapping[str, Any]) -> Iterator[Table]:
    """A table for each section that was measured."""
    makers = {"rows": _one, "batches": _batches, "isolation": _isolation, "equality": _equality, "damage": _damage}
    for key, make in makers.items():
        if report.get(key):
            yield make(report)
    skipped = report.get("skipped")
    if skipped:
        yield _table("skipped", ("row", "why"), ((name, shorten(why, 60)) for name, why in skipped.items()))


def _one(report: Mapping[str, Any]) -> Table:
    timm = next((row["cpu_ms_per_image"] for row in report["rows"] if row["method"].startswith("timm")), None)
    return _table(
        f"one image after the other, 1 thread: {report['images']} images, {report['rounds']} rounds",
        ("method", " CPU ms/image", " median", " images/s", " of timm", " mean off", " max off"),
        (
            (
                row["method"],
                f"{row['cpu_ms_per_image']:.2f}",
                f"{row['cpu_ms_per_image_median']:.2f}",
                f"{row['images_per_second']:.0f}",
                f"{row['cpu_ms_per_image'] / timm:.2f}" if timm else "",
                f"{row['mean_difference_levels']:.4f}",
                f"{row['max_difference_levels']:.0f}",
            )
            for row in report["rows"]
        ),
    )


def _batches(report: Mapping[str, Any]) -> Table:
    return _table(
        f"batches: {report['images']} images, {report['rounds']} rounds; CPU time is the whole process's",
        ("loader", " batch", " threads", " CPU ms/image", " median", " images/s", " median"),
        (
            (
                row["loader"],
                row["batch"],
                row["threads"],
                f"{row['cpu_ms_per_image']:.2f}",
                f"{row['cpu_ms_per_image_median']:.2f}",
                f"{row['images_per_second']:.0f}",
                f"{row['images_per_second_median']:.0f}",
            )
            for row in report["batches"]
        ),
    )


def _isolation(report: Mapping[str, Any]) -> Table:
    """Also of `bench/gpu.py`'s rows, which are of the same kind."""
    return isolation_table(report["isolation"])


def isolation_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One bad image harms nobody: is it so."""
    return _table(
        f"one bad image harms nobody: times as long as a clean batch, goal {GOAL:g}",
        ("loader", "bad images", " answers", " errors", " changed", " clean ms", " times", " CPU", ""),
        (
            (
                row["loader"],
                row["kind"],
                f"{row['right_answers']}/{row['good']}",
                f"{row['right_errors']}/{row['bad']}",
                row["changed"],
                f"{row['clean_ms']:.1f}",
                f"{row['ratio']:.2f}",
                f"{row['cpu_ratio']:.2f}",
                _verdict(row),
            )
            for row in rows
        ),
    )


def _equality(report: Mapping[str, Any]) -> Table:
    return equality_table(report["equality"])


def equality_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """How far from the reference, in levels."""
    return _table(
        "equality with the Pillow reference, in levels; limits: the worst image's mean / the max",
        ("loader", "images", " count", " worst mean", " mean", " max", " limits", "", "worst"),
        (
            (
                row["loader"],
                row["what"],
                row["images"],
                f"{row['worst_mean']:.4f}",
                f"{row['mean']:.4f}",
                f"{row['max']:.2f}",
                f"{row['limit']['mean']:g} / {row['limit']['max']:g}",
                _verdict(row) + (f" {row['wrong_status']} wrong" if row["wrong_status"] else ""),
                row["worst"][:24],
            )
            for row in rows
        ),
    )


def _damage(report: Mapping[str, Any]) -> Table:
    return _table(
        "damaged coded data: images refused, and CPU ms of an undamaged one",
        ("damage", " images", " by a decode", " by the check", " agree", " by DALI", " decode ms", " check ms"),
        (
            (
                row["kind"],
                row["images"],
                row["decode_refused"],
                row["check_refused"],
                row["agreed"],
                "" if row["dali_refused"] is None else row["dali_refused"],
                f"{row['decode_cpu_ms']:.2f}",
                f"{row['check_cpu_ms']:.2f}",
            )
            for row in report["damage"]
        ),
    )


def _verdict(row: Mapping[str, Any]) -> str:
    return "PASS" if row["passed"] else "FAIL"


def _table(title: str, columns: Sequence[str], rows: Any) -> Table:
    """A table; columns whose name begins with a blank are numbers and go to the right."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        right = column.startswith(" ")
        table.add_column(column.strip(), justify="right" if right else "left", no_wrap=column != columns[-1])
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    return table
