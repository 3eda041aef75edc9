"""The alert table: each fault is made beside a real Prometheus and Alertmanager, and what is told of it is timed.

    python -m milkweed.bench.alerts --prometheus-bin /usr/bin

Durations of the rules are divided by --factor, so that minutes take seconds; scrapes and evaluations come every second.
"""

import argparse
import json
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .alerting.faults.catalogue import FAULTS, NOT_MADE
from .alerting.monitoring import EVERY_SECONDS, monitoring
from .alerting.programs import FOLDER, Programs, find_programs
from .alerting.table import head, lines
from .alerting.trial import FACTOR, trial
from .machine import machine
from .serving.bundles import tiny_bundle

DEFAULT_OUT = Path("bench/results/alerts.json")


def main(arguments: list[str] | None = None) -> int:
    """Command line: print the table as it comes, write the JSON; 1 where an alert did not do as it should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prometheus-bin", type=Path, help=f"folder of the programs; else {FOLDER}, else PATH")
    parser.add_argument("--faults", default=",".join(FAULTS), help="some of them, separated by commas; all")
    parser.add_argument("--factor", type=float, default=FACTOR, help="to divide the rules' durations by; 1: as shipped")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    options = parser.parse_args(arguments)
    names = options.faults.split(",")
    unknown = [name for name in names if name not in FAULTS]
    if unknown:
        parser.error(f"no fault {unknown[0]!r}; there are: {', '.join(FAULTS)}")
    if options.factor <= 0:
        parser.error(f"--factor {options.factor:g}: must be above 0")
    try:
        programs = find_programs(options.prometheus_bin)
    except FileNotFoundError as error:
        print(f"milkweed: error: {error}", file=sys.stderr)
        return 2
    document = run(programs, names, options.factor)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {options.out}")
    return 1 if any(tried["complaints"] for tried in document["faults"]) else 0


def run(programs: Programs, names: list[str], factor: float) -> dict[str, Any]:
    """Try the named faults, one after the other; the document that is written. What cannot be tried is a complaint.

    Raises:
        RuntimeError: Prometheus or Alertmanager does not start.
    """
    document: dict[str, Any] = {
        "benchmark": "alerts",
        "version": version("milkweed"),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": machine(),
        "factor": factor,
        "scrape_seconds": EVERY_SECONDS,
        "evaluation_seconds": EVERY_SECONDS,
    }
    with tempfile.TemporaryDirectory() as folder:
        bundle = tiny_bundle(Path(folder) / "tiny")
        document |= _versions(programs, Path(folder))
        print(f"durations of the rules divided by {factor:g}; scrapes and evaluations every {EVERY_SECONDS} s")
        print(head(), flush=True)
        document["faults"] = []
        for name in names:
            try:
                tried = trial(FAULTS[name], programs, bundle, factor).as_json()
            except RuntimeError as error:
                tried = {"fault": name, "alerts": [], "complaints": [f"{name} could not be tried: {error}"]}
            document["faults"].append(tried)
            print("\n".join(lines(tried)), flush=True)
    document["not_made"] = {"/".join(key): why for key, why in NOT_MADE.items()}
    return document


def _versions(programs: Programs, folder: Path) -> dict[str, str]:
    (folder / "monitoring").mkdir()
    with monitoring(programs, folder / "monitoring", pods={}) as running:
        return {"prometheus": running.prometheus.version(), "alertmanager": running.alertmanager.version()}


if __name__ == "__main__":
    sys.exit(main())
