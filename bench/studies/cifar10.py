"""The experiment on CIFAR-10: a small ViTAE dense, Monarch, S2D, D2S and D2S with recovery, by the product's commands.

    python -m milkweed.bench.studies.cifar10 DATA WORK

DATA holds `train/<class>/*.jpg` and `test/<class>/*.jpg`. Each model is made by `milkweed train` or `milkweed compress`
from the training images alone and measured by `milkweed evaluate` on all test images, which choose nothing.
Interrupted, the same command goes on: finished models in WORK stay, `milkweed` itself takes up the one it was at.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..cifar10_plot import plot
from ..process import machine
from .cifar10_plan import SIBLINGS, Plan, arch_args, command, summary

DEFAULT_OUT = Path("bench/results/cifar10.json")
Milkweed = Callable[[Sequence[str], Path], str]
"""Runs `milkweed` with these arguments, messages to a log file; returns what it printed."""


class ExperimentError(RuntimeError):
    """The experiment cannot go on; the message is one line."""


def run(data: Path, work: Path, plan: Plan, *, out: Path | None, milkweed: Milkweed) -> dict[str, Any]:
    """Make and measure what is not there yet; returns, and writes to `out`, what all of it came to.

    Args:
        work: keeps the bundles, a log and the figures of each; a folder of another plan is refused.

    Raises:
        ExperimentError: a command failed, or `work` belongs to another plan.
    """
    _claim(work, plan)
    rows = []
    for seed in plan.seeds:
        for sibling in SIBLINGS:
            folder = work / f"seed{seed}"
            folder.mkdir(exist_ok=True)
            rows.append(_row(sibling.name, seed, plan, data, folder, milkweed))
            document = _document(plan, rows)
            if out is not None:
                _write(out, document)
    return document


def call_milkweed(arguments: Sequence[str], log: Path) -> str:
    """Run the command, and wait.

    Raises:
        ExperimentError: it failed; the message holds the last line it wrote.
    """
    with open(log, "a") as messages:
        messages.write(f"$ milkweed {shlex.join(arguments)}\n")
        messages.flush()
        command = [sys.executable, "-P", "-m", "milkweed.server.cli", *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=messages, text=True, check=False)
    if done.returncode:
        last = log.read_text().rstrip().rpartition("\n")[2]
        raise ExperimentError(f"milkweed {arguments[0]} ended with {done.returncode}: {last} (all of it: {log})")
    return done.stdout


def table(document: Mapping[str, Any]) -> Table:
    """The document for people."""
    found = Table(title=f"CIFAR-10 test, {document['plan']['epochs']} epochs, seeds {document['plan']['seeds']}")
    for name in ("model", "top-1 %", "± sampling", "to dense", "parameters", "minutes"):
        found.add_column(name, justify="left" if name == "model" else "right")
    for line in document["summary"]:
        found.add_row(
            line["title"],
            f"{line['top1']:.2f}",
            f"{line['sampling_error']:.2f}",
            f"{line['to_dense']:+.2f}",
            f"{line['parameters']:,}",
            f"{line['seconds'] / 60:.1f}",
        )
    return found


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--epochs", type=int, default=Plan.epochs)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(Plan.seeds))
    parser.add_argument("--threads", type=int, default=Plan.threads)
    parser.add_argument("--device", default=Plan.device)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    args = parser.parse_args()
    plan = Plan(epochs=args.epochs, seeds=tuple(args.seeds), threads=args.threads, device=args.device)
    try:
        document = run(args.data, args.work, plan, out=args.out, milkweed=call_milkweed)
    except ExperimentError as error:
        sys.exit(f"cifar10: {error}")
    args.out.with_suffix(".svg").write_bytes(plot(document))
    Console().print(table(document))


def _claim(work: Path, plan: Plan) -> None:
    """Write down what `work` is for, or see that it is for this plan."""
    work.mkdir(parents=True, exist_ok=True)
    file, wanted = work / "plan.json", plan.to_dict()
    if file.exists():
        there = json.loads(file.read_text())
        for name, value in wanted.items():
            if there.get(name) != value:
                raise ExperimentError(f"{work} is of another plan: its {name} is {there.get(name)!r}, not {value!r}")
    else:
        _write(file, wanted)
    (work / "arch.json").write_text(json.dumps(arch_args()))


def _row(name: str, seed: int, plan: Plan, data: Path, folder: Path, milkweed: Milkweed) -> dict[str, Any]:
    """The figures of one model, made and measured if they are not there yet."""
    file = folder / f"{name}.json"
    if file.exists():
        found: dict[str, Any] = json.loads(file.read_text())
        return found
    log, bundle = folder / f"{name}.log", folder / name
    made = command(plan, name, seed, data, folder)
    if not bundle.exists():
        milkweed(made, log)
    row = {"name": name, "seed": seed, "command": _portable(made, data, folder)}
    row |= _measured(bundle, data, log, milkweed)
    _write(file, row)
    return row


def _measured(bundle: Path, data: Path, log: Path, milkweed: Milkweed) -> dict[str, Any]:
    accuracy = json.loads(milkweed(["evaluate", str(bundle), str(data / "test"), "--json"], log))
    about = json.loads(milkweed(["inspect", str(bundle), "--json"], log))
    report = about.get("report") or {}
    return {
        "version": about["version"],
        "top1": accuracy["top1"],
        "correct": accuracy["correct1"],
        "images": accuracy["images"],
        "parameters": about["parameters"]["total"],
        "macs": about["macs"]["per_image"],
        "bytes_on_disk": about["bytes"]["on_disk"],
        "seconds": sum(step["seconds"] for step in about["provenance"]["commands"]),
        "history": report.get("history", []),
    }


def _document(plan: Plan, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "benchmark": "cifar10",
        "command": shlex.join(["python", "-m", "milkweed.bench.studies.cifar10", "DATA", "WORK", *plan.options()]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine(),
        "plan": plan.to_dict(),
        "arch_args": arch_args(),
        "rows": rows,
        "summary": summary(rows),
    }


def _portable(arguments: Sequence[str], data: Path, folder: Path) -> str:
    """The command without this machine's paths."""
    text = shlex.join(["milkweed", *arguments])
    return text.replace(str(folder.parent), "WORK").replace(str(data), "DATA")


def _write(file: Path, document: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f".{file.name}.new")
    new.write_text(json.dumps(document, indent=1) + "\n")
    new.replace(file)


if __name__ == "__main__":
    main()
