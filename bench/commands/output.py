"""What `milkweed bench` leaves behind: the JSON, the picture, and tables of its rows."""

import json as json_format
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

from ...cli.errors import CommandError
from ...cli.options import check_plot
from ...cli.output import note, print_json, print_table
from ...models.report.drawing import save_picture

Draw = Callable[[Mapping[str, Any]], Any]  # makes the figure of a document
Show = Callable[[Mapping[str, Any]], None]  # prints a document for a person


@dataclass(frozen=True)
class Files:
    """The files that a benchmark leaves behind; whether they can be written is found out here, before a long run.

    Args:
        usual: where the JSON goes if neither `out` nor `plot` says it.
        draw: makes the figure that is written to `plot`.

    Raises:
        CommandError: a picture of no known kind, or a place where no file can be; names it.
        ImportError: see `check_plot`.
    """

    usual: Path
    draw: Draw
    out: Path | None
    plot: Path | None
    json: bool

    def __post_init__(self) -> None:
        check_plot(self.plot)
        for path in filter(None, (self.document, self.plot)):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                tempfile.TemporaryFile(dir=path.parent).close()
            except FileExistsError as error:
                raise CommandError(f"{path}: cannot be written: {path.parent} is no folder") from error
            except OSError as error:
                raise CommandError(f"{path}: cannot be written: {error.strerror}") from error
            if path.is_dir():
                raise CommandError(f"{path}: cannot be written: it is a folder")

    @property
    def document(self) -> Path:
        """The file of the JSON: as asked, beside the picture, or where it usually is."""
        return self.out or (self.plot.with_suffix(".json") if self.plot else self.usual)

    def finish(self, document: dict[str, Any], show: Show, secret: str | None = None) -> None:
        """Write the JSON, with the command that made it, less its secret, and the picture; show a table or the JSON."""
        words = [word.replace(secret, "***") if secret else word for word in sys.argv[1:]]
        document["command"] = shlex.join(["milkweed", *words])
        self.document.write_text(json_format.dumps(document, indent=1) + "\n")
        if not self.json:
            note(f"wrote {self.document}")
        self.picture(document)
        (print_json if self.json else show)(document)

    def picture(self, document: Mapping[str, Any]) -> None:
        """Draw what was measured, where a picture was asked for."""
        if self.plot is not None:
            try:
                note(f"wrote {save_picture(lambda: self.draw(document), self.plot)}")
            except ValueError as error:  # what was measured is written all the same
                note(f"no picture: {error}")


def print_model(document: Mapping[str, Any]) -> None:
    """The table of `bench model`."""
    machine, settings = document["machine"], document["settings"]
    print(
        f"{machine['processor']}, threads {settings['threads']}, {machine['cpu_capability']}; "
        f"ms an operation: wall (CPU), medians; ratio = dense / Monarch"
    )
    print_table(
        ("what", "dtype", " images", " dense ms", " Monarch ms", " ratio", " CPU ratio", " MACs ratio"),
        (
            (
                row["name"],
                row["dtype"],
                row["images"],
                _times(row["dense"]),
                _times(row["monarch"]),
                f"{row['ratio_wall']:.2f}",
                f"{row['ratio_cpu']:.2f}",
                f"{row['macs_dense'] / row['macs_monarch']:.2f}",
            )
            for row in document["rows"]
        ),
    )


def _times(side: Mapping[str, float]) -> str:
    return f"{side['wall_ms']:.2f} ({side['cpu_ms']:.2f})"


def print_kernels(document: Mapping[str, Any]) -> None:
    """The table of `bench kernels`."""
    machine, settings, ceilings = document["machine"], document["settings"], document["ceilings"]
    print(
        f"{machine['processor']}, threads {settings['threads']}, {settings['dtype']}; "
        f"copy {ceilings['bytes_per_second'] / 1e9:.1f} GB/s, product {ceilings['flops_per_second'] / 1e9:.0f} GFLOP/s"
    )
    print_table(
        ("MLP", " images", "way", " us", " GFLOP/s", " of roof", "why not, or how"),
        (
            (
                row["what"],
                row["batch"],
                row["candidate"],
                f"{row['us']:,.0f}" if row["us"] else "-",
                f"{row['flops'] / row['us'] / 1e3:.0f}" if row["us"] else "-",
                f"{100 * row['floor_us'] / row['us']:.0f} %" if row["us"] else "-",
                row["note"],
            )
            for row in document["rows"]
        ),
    )
    for line in document["skipped"]:
        print(line)


_DAMAGE = {
    "kind": "damage",
    "images": " images",
    "decode_refused": " by a decode",
    "check_refused": " by the check",
    "agreed": " agree",
    "dali_refused": " by DALI",
    "decode_cpu_ms": " decode ms",
    "check_cpu_ms": " check ms",
}
_CROP = {
    "images": "images",
    "count": " count",
    "whole_cpu_ms": " whole ms",
    "part_cpu_ms": " part ms",
    "other_bits": " other bits",
    "fast_cpu_ms": " fast ms",
    "fast_levels_off": " levels off",
    "damaged": " damaged",
    "other_verdicts": " other verdicts",
}
"""Columns of the section `damage` by the member of a row."""


def print_decode(document: Mapping[str, Any]) -> None:
    """The tables of `bench decode`, one a section that was measured."""
    run = f"{document['images']} images, {document['rounds']} rounds"
    if document["rows"]:
        print(f"one image after the other, 1 thread: {run}")
        columns = ("method", " CPU ms/image", " median", " images/s", " of timm", " mean off", " max off")
        print_table(columns, _methods(document["rows"]))
    if batches := document.get("batches"):
        print(f"batches: {run}; CPU time is the whole process's")
        columns = ("loader", " batch", " threads", " CPU ms/image", " median", " images/s", " median")
        print_table(columns, ((row["loader"], row["batch"], row["threads"], *_decode_times(row)) for row in batches))
    if damage := document.get("damage"):
        print("damaged coded data: images refused, and CPU ms of an undamaged one")
        print_table([*_DAMAGE.values()], ([row[name] for name in _DAMAGE] for row in damage))
    if crop := document.get("crop"):
        print("what is looked at against whole JPEGs: CPU ms an image, and images with other bits or verdicts")
        print_table([*_CROP.values()], ([row[name] for name in _CROP] for row in crop))
    if document["skipped"]:
        print_table(("skipped", "why"), ((name, shorten(why, 60)) for name, why in document["skipped"].items()))


def _methods(rows: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[object]]:
    timm = next((row["cpu_ms_per_image"] for row in rows if row["method"].startswith("timm")), None)
    for row in rows:
        cpu, median, rate, _ = _decode_times(row)
        of_timm = f"{row['cpu_ms_per_image'] / timm:.2f}" if timm else ""
        off = f"{row['mean_difference_levels']:.4f}", round(row["max_difference_levels"])
        yield row["method"], cpu, median, rate, of_timm, *off


def _decode_times(row: Mapping[str, Any]) -> tuple[str, str, int, int]:
    cpu, median = (f"{row[name]:.2f}" for name in ("cpu_ms_per_image", "cpu_ms_per_image_median"))
    return cpu, median, round(row["images_per_second"]), round(row["images_per_second_median"])
