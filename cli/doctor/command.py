"""`milkweed doctor` says what this machine can do, what `milkweed serve` would use of it, and what is missing."""

from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...models.errors import printable
from ..bundle_args import bundle_path, installed_demo
from ..errors import FAILED
from ..options import Json, text_option
from ..output import print_json, print_rich
from ..serving.config import try_settings
from ..serving.serve import ConfigFile
from .finding import Finding, Status

if TYPE_CHECKING:
    from ...server.config.settings import Settings

BundleToCheck = Annotated[
    Path | None,
    text_option("BUNDLE", "Folder of what is to be served; the demo model if not given.", parser=bundle_path),
]

COLOURS: dict[Status, str] = {"ok": "green", "warning": "yellow", "missing": "cyan", "broken": "bold red"}


def doctor(bundle: BundleToCheck = None, config: ConfigFile = None, json: Json = False, **settings: str | None) -> None:
    """Check this machine: what would be used, and what is missing.

    Says what the machine can do, what `milkweed serve` would use of it and why, and what to install for more. Takes
    every option of `milkweed serve` too (see there), and reads the same variables and file. The bundle is opened in a
    process of its own; nothing is downloaded or changed. Each row is ok, warning (it works, but not well), missing
    (optional) or broken. The exit code is 1 if anything is broken: `milkweed serve` with these settings would not
    start, or not as it was asked to.

    \b
    Example:
      milkweed doctor --bundle ./deit-monarch --device auto
    """
    from ...server.config.settings import Settings
    from .gpu import gpu_findings, gpu_info
    from .machine import machine_findings
    from .packages import package_findings

    loaded, errors = try_settings(settings, config)
    info, used = gpu_info(), loaded or Settings.model_construct()
    findings = [
        *machine_findings(used, with_gpu=bool(info.gpus)),
        *gpu_findings(info),
        *package_findings(used, with_gpu=bool(info.gpus)),
        *_settings_findings(loaded, errors, settings, config, bundle),
    ]
    broken = any(finding.status == "broken" for finding in findings)
    if json:
        print_json({"serves": not broken, "findings": list(map(vars, findings))})
    else:
        _print(findings)
    if broken:
        raise typer.Exit(FAILED)


def _settings_findings(
    settings: "Settings | None", errors: list[str], flags: dict[str, Any], file: Path | None, bundle: Path | None
) -> Iterator[Finding]:
    """Make the rows about the settings, and where they can be used, about what would be served."""
    from ...server.config.settings import OFF
    from ...server.config.sources import environment_warnings, origins
    from .plan import plan_findings

    check = f"milkweed config check {file}" if file else "milkweed config check"
    for line in errors:
        yield Finding("settings", "settings", "broken", line, check)
    for line in environment_warnings(settings):
        yield Finding("settings", "variable", "warning", line, "unset it")
    if settings is None:
        return
    places = origins(flags, file)
    if not errors:
        named = ", ".join(name for name, place in places.items() if place != "default")
        text = f"right; not by default: {named}" if named else "right; all by default"
        yield Finding("settings", "settings", "ok", text)
    bundle = bundle or (installed_demo() if settings.repository == OFF else None)
    if bundle is None and settings.repository == OFF:
        text = "no bundle was given and the demo model is not installed"
        yield Finding("would serve", "model", "broken", text, "milkweed doctor --bundle BUNDLE")
    yield from plan_findings(settings, places, bundle)


def _print(findings: list[Finding]) -> None:
    """Print a table, the parts one under the other, and a line that says whether the service would start."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for column in range(3):
        table.add_column(no_wrap=column < 2, overflow="fold")
    for part, rows in groupby(findings, lambda finding: finding.part):
        table.add_row(Text(part, style="bold"))
        for row in rows:
            text = Text(printable(row.text))
            if row.fix:
                text.append(f"\n→ {row.fix}", style="cyan")
            table.add_row(f"  {row.name}", Text(row.status, style=COLOURS[row.status]), text)
        table.add_row()
    print_rich(table)
    counts = Counter(finding.status for finding in findings)
    print(", ".join(f"{counts[status]} {status}" for status in COLOURS if counts[status]))
    if counts["broken"]:
        print("milkweed serve would not start like this, or not as it was asked to")
    else:
        print("milkweed serve works here")
