"""Writes a run's report as report.html and report.json, and reads report.json back from a bundle."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import compress
from math import isfinite
from pathlib import Path
from typing import Any

from ..bundle.strict_json import parse_json, readable_json
from ..errors import quoted
from .document import RunReport
from .drawing import require

HTML, JSON = "report.html", "report.json"
MAX_HISTORY = 2000
"""So many recorded steps are kept; of a longer history, evenly spaced ones and all evaluations."""
MAX_REPORT_BYTES = 8 << 20
"""Far above any report of ours: ViT-H has 128 linear layers, and a row takes 600 bytes."""


def write_report(report: RunReport) -> dict[str, bytes]:
    """The two files that lie beside a bundle's own: a page for a person, and the same as JSON.

    The same report gives the same bytes. Figures that are not finite become null and are named in a warning, since
    a long run should not fail for the sake of its report.

    Raises:
        ImportError: matplotlib or jinja2 is not installed.
        ValueError: something in it is not plain data of the annotated type, or there is too much of it.
    """
    from .page import render_page

    odd: list[str] = []
    document = _plain(asdict(replace(report, history=_thinned(report.history))), "report", odd)
    if odd:
        named = ", ".join(odd[:5]) + (f" and {len(odd) - 5} more" if len(odd) > 5 else "")
        document["warnings"].append(f"figures that were not finite are left out: {named}")
    # Read back as a reader will: what is drawn is what is written.
    report = RunReport.from_dict(document)
    data = readable_json(report.to_dict())
    if len(data) > MAX_REPORT_BYTES:
        raise ValueError(f"{JSON} would have {len(data)} bytes, the limit is {MAX_REPORT_BYTES}")
    return {HTML: render_page(report).encode(), JSON: data}


def read_report(bundle: str | Path) -> RunReport | None:
    """The report that lies in a bundle, or None where there is none. No hash covers it, so that it may be anything.

    Raises:
        ValueError: names the file and what is wrong with it.
        OSError: it cannot be read.
    """
    path = Path(bundle) / JSON
    if not path.exists():
        return None
    if not path.is_file():
        raise ValueError(f"{JSON} is not a file")
    with path.open("rb") as file:
        data = file.read(MAX_REPORT_BYTES + 1)
    if len(data) > MAX_REPORT_BYTES:
        raise ValueError(f"{JSON} has more than {MAX_REPORT_BYTES} bytes")
    try:
        return RunReport.from_dict(parse_json(data))
    except ValueError as error:
        raise ValueError(f"{JSON}: {error}") from None


def check_report_packages() -> None:
    """Find out before a long run whether its report can be written.

    Raises:
        ImportError: names what to install.
    """
    for package in ("matplotlib", "jinja2"):
        require(package)


def _plain(value: Any, where: str, odd: list[str]) -> Any:
    """`value` in a form that JSON can hold; adds the places of figures that are not finite to `odd`."""
    if isinstance(value, str):
        # Names of files may hold bytes that are no text.
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {_plain(str(name), where, odd): _plain(item, f"{where}.{name}", odd) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{place}]", odd) for place, item in enumerate(value)]
    if isinstance(value, float) and not isfinite(value):
        odd.append(where)
        return None
    if value is None or isinstance(value, float | int):
        return value
    raise ValueError(f"{where} {quoted(value)} is a {type(value).__name__}, not plain data")


def _thinned(history: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """At most about MAX_HISTORY steps: every n-th, the last, and those with an evaluation."""
    every, last = max(1, -(-len(history) // MAX_HISTORY)), len(history) - 1
    kept = (place % every == 0 or place == last or "top1" in row for place, row in enumerate(history))
    return tuple(compress(history, kept))
