"""`milkweed doctor` tells what this machine can do, what `milkweed serve` would use of it, and what is missing."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...models.errors import printable
from ..bundle_args import bundle_path, installed_demo
from ..errors import FAILED
from ..options import Json, text_option
from ..output import print_json, print_rich
from ..serving.serve import ConfigFile

if TYPE_CHECKING:
    from .finding import Finding

MaybeBundle = Annotated[
    Path | None,
    text_option("BUNDLE", "Folder of what is to be served; the demo model if not given.", parser=bundle_path),
]

COLOURS = {"ok": "green", "warning": "yellow", "missing": "cyan", "broken": "bold red"}


def doctor(bundle: MaybeBundle = None, config: ConfigFile = None, json: Json = False, **settings: str | None) -> None:
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
    findings = _examine(settings, config, bundle)
    broken = [finding for finding in findings if finding.status == "broken"]
    if json:
        print_json({"serves": not broken, "findings": list(map(vars, findings))})
    else:
        _print(findings)
    if broken:
        raise typer.Exit(FAILED)


def _examine(flags: dict[str, Any], file: Path | None, bundle: Path | None) -> "list[Finding]":
    """Make all rows; where the settings are wrong, those of the machine are for the default settings."""
    from ...server.config.settings import OFF, Settings
    from ...server.config.sources import SettingsError, environment_warnings, load_settings, origins
    from ..serving.config import wrong_files
    from .finding import Finding
    from .gpu import gpu_findings
    from .host import machine_findings
    from .packages import package_findings
    from .plan import plan_findings
    from .system_info import gather

    wrong: list[str] = []
    loaded = None
    try:
        loaded = load_settings(flags, file)
        wrong += wrong_files(loaded)
    except SettingsError as error:
        wrong += error.lines
    facts, used = gather(), loaded or Settings.model_construct()
    findings = [*machine_findings(facts, used), *gpu_findings(facts), *package_findings(facts, used)]
    check = f"milkweed config check {file}" if file else "milkweed config check"
    findings += [Finding("settings", "settings", "broken", line, check) for line in wrong]
    findings += [Finding("settings", "variable", "warning", line, "unset it") for line in environment_warnings(loaded)]
    if loaded is None:
        return findings
    places = origins(flags, file)
    if not wrong:
        given = [name for name, place in places.items() if place != "default"]
        text = f"right; not by default: {', '.join(given)}" if given else "right; all by default"
        findings.append(Finding("settings", "settings", "ok", text))
    chosen = bundle or (installed_demo() if loaded.repository == OFF else None)
    if chosen is None and loaded.repository == OFF:
        text = "no bundle was given and the demo model is not installed"
        findings.append(Finding("would serve", "model", "broken", text, "milkweed doctor --bundle BUNDLE"))
    return [*findings, *plan_findings(loaded, places, chosen)]


def _print(findings: "list[Finding]") -> None:
    """Print a table, the parts one under the other, and a line that says whether the service would start."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for column in range(3):
        table.add_column(no_wrap=column < 2, overflow="fold")
    part = ""
    for finding in findings:
        if finding.part != part:
            if part:
                table.add_row()
            part = finding.part
            table.add_row(Text(part, style="bold"))
        text = Text(printable(finding.text))
        if finding.fix:
            text.append(f"\n→ {finding.fix}", style="cyan")
        table.add_row(f"  {finding.name}", Text(finding.status, style=COLOURS[finding.status]), text)
    print_rich(table)
    counts = [(status, sum(finding.status == status for finding in findings)) for status in COLOURS]
    print("\n" + ", ".join(f"{count} {status}" for status, count in counts if count))
    if any(finding.status == "broken" for finding in findings):
        print("milkweed serve would not start like this, or not as it was asked to")
    else:
        print("milkweed serve works here")
