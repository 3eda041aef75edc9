"""What `milkweed bench` leaves behind: the JSON, the picture, and tables of its rows."""

import json as json_format
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...cli.errors import CommandError
from ...cli.options import check_plot
from ...cli.output import note, print_json, print_table

Draw = Callable[[Mapping[str, Any], Path], Path]  # writes the picture of a document
Show = Callable[[Mapping[str, Any]], None]  # prints a document for a person


@dataclass(frozen=True)
class Files:
    """The files that a benchmark leaves behind; whether they can be written is found out here, before a long run.

    Args:
        usual: where the JSON goes if neither `out` nor `plot` says it.
        draw: writes the picture to `plot`.

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
                note(f"wrote {self.draw(document, self.plot)}")
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
