"""Every figure that needs a GPU, in one command: step after step in processes of their own, and a table of the goals.

    python -m milkweed.bench.gpu_day --photos DIR --bundle BUNDLE [--out bench/results/gpu] [--steps kernels model ...]

Each step has a limit of under ten minutes and writes OUT/STEP.json; OUT/steps.json says how each ended. What ended well
is not run again, so the same command goes on where an earlier one was ended, and `--round 2` measures all of it a
second time, beside the first. After each step OUT/README.md says what was asked for and what was measured, in every
round.

    tests       the tests that need a GPU (pytest -m gpu)
    kernels     builds the library; every impl against float64; MLPs of the published shapes
    parts       attention, ViTAE's cells
    vit, vitae  whole forwards beside the dense model eager, as a CUDA graph, and compiled by max-autotune
    decode      JPEGs on the GPU: right, isolated, in order, how fast
    answers     numerics of a real model, memory over 100,000 images, latency of one image, servers under load
    ingest      images a second that one server takes in
    preset      the tuner's plans for this GPU, as OUT/preset/NAME.json: kernels/presets/ takes it
    recovery    with --photos, named by class, and --bundle: its accuracy once compressed and recovered
    cifar10     with --cifar10 DATA: the demo model's experiment, three seeds; goes on where an earlier call ended

`--dry-run` walks the steps on a CPU with tiny shapes; its figures are none.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VIT = ("vit_base_patch16_224", "vit_small_patch16_224", "deit_tiny_patch16_224")
VITAE = ("vitae_basic_tiny", "vitae_basic_small", "t2t_vit_14")
DECODING = ("facts", "equality", "bad", "stream", "memory", "rates")
ANSWERS = ("numerics", "growth", "latency", "served")
RECOVERED = ("mlp62-recovered", "all65-recovered")
DONE = "done"
LIMIT_SECONDS, GRACE_SECONDS = 540, 45
"""A step ends itself after the first, and is ended so long after that."""


@dataclass(frozen=True)
class Step:
    """One process.

    Args:
        command: after `python -m`, without where it writes.
        out: the option that says where; None where it writes no JSON and its exit status is kept instead.
    """

    name: str
    command: tuple[str, ...]
    out: str | None = "--out"


def steps(options: argparse.Namespace) -> list[Step]:
    """All that can be run with what was given, in the order of what matters most."""
    gpu = ("milkweed.bench.gpu", *(("--dry-run",) if options.dry_run else ()), f"--limit-seconds={LIMIT_SECONDS}")
    built = (*gpu, "--no-build")
    given = [f"--{name}={value}" for name in ("photos", "bundle", "bad") if (value := getattr(options, name))]
    images = (*built, "--sections", "images", *given, "--parts")
    device = "cpu" if options.dry_run else "cuda"
    work = options.out / "work" / str(options.round)  # where these two find what an earlier call had finished
    cifar10 = ("milkweed.bench.studies.cifar10", str(options.cifar10), str(work / "cifar10"), "--device", device)
    recovery = ("milkweed.bench.studies.compression", str(options.bundle), str(options.photos), str(work / "recovery"))
    found = [
        Step("tests", ("pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", "tests/kernels", "tests/models"), None),
        Step("kernels", (*gpu, "--sections", "check", "mlp")),
        Step("vit", (*built, "--sections", "model", "--models", *VIT)),
        Step("vitae", (*built, "--sections", "model", "--models", *VITAE)),
        Step("parts", (*built, "--sections", "attention", "cells")),
        Step("decode", (*images, *DECODING)),
        Step("answers", (*images, *ANSWERS)),
        Step("ingest", (*images, "ingest")),
        Step("preset", (*built, "--sections", "tune", "--tuning-folder", str(options.out / "preset"))),
        *([Step("recovery", (*recovery, "--rows", *RECOVERED))] if options.bundle and options.photos else []),
        *([Step("cifar10", (*cifar10, "--seeds", "0", "1", "2"))] if options.cifar10 else []),
    ]
    return [step for step in found if not options.steps or step.name in options.steps]


def run_step(step: Step, path: Path) -> str:
    """Run it, its output as it comes; what became of it in a few words."""
    command = [sys.executable, "-m", *step.command, *([f"{step.out}={path}"] if step.out else [])]
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
    began = time.monotonic()
    try:
        code = subprocess.run(command, env=environment, timeout=LIMIT_SECONDS + GRACE_SECONDS).returncode
        said = DONE if code == 0 else f"ended with {code}: see its output"
    except subprocess.TimeoutExpired:
        code, said = None, f"ended after {LIMIT_SECONDS + GRACE_SECONDS} s: what it had written until then counts"
    if step.out is None:
        path.write_text(json.dumps({"command": step.command, "exit_status": code, "goals": []}) + "\n")
    return f"{said}, {time.monotonic() - began:.0f} s"


def goals(folder: Path, names: Sequence[str]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Each goal of the steps' files, with what every round measured, in the rounds' order."""
    rounds: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        for path in sorted(folder.glob(f"{name}.json")) + sorted(folder.glob(f"{name}.round*.json")):
            for goal in json.loads(path.read_text()).get("goals", []):
                rounds.setdefault(str(goal["goal"]), []).append({**goal, "file": path.name})
    yield from rounds.items()


def table(folder: Path, names: Sequence[str]) -> str:
    """The goals as a page."""
    lines = ["| goal | wanted | measured | met | file |", "|---|---|---|---|---|"]
    for name, found in goals(folder, names):
        unit, most = found[0].get("unit", "x"), "at most " if found[0].get("at_most") else ""
        values = " / ".join("not measured" if one["measured"] is None else f"{one['measured']:.4g}" for one in found)
        met = " / ".join({True: "yes", False: "no", None: "-"}[one["met"]] for one in found)
        files = ", ".join(dict.fromkeys(f"`{one['file']}`" for one in found))
        lines.append(f"| {name} | {most}{found[0]['wanted']}{unit} | {values} | {met} | {files} |")
    return "\n".join(lines) + "\n"


def day(options: argparse.Namespace) -> int:
    """Run the steps that have not ended well yet; 1 where one does not."""
    options.out.mkdir(parents=True, exist_ok=True)
    log = options.out / "steps.json"
    ended: dict[str, str] = json.loads(log.read_text()) if log.exists() else {}
    failed = False
    for step in steps(options):
        path = options.out / (f"{step.name}.json" if options.round == 1 else f"{step.name}.round{options.round}.json")
        if ended.get(path.stem, "").startswith(DONE):
            print(f"== {step.name}: {ended[path.stem]}, in {path}", flush=True)
            continue
        print(f"== {step.name}", flush=True)
        said = ended[path.stem] = run_step(step, path)
        failed |= not said.startswith(DONE)
        log.write_text(json.dumps(ended, indent=1) + "\n")
        print(f"== {step.name}: {said}", flush=True)
        names = [each.name for each in steps(argparse.Namespace(**{**vars(options), "steps": None}))]
        dry = "A dry run: none of these is a figure.\n\n" if options.dry_run else ""
        (options.out / "README.md").write_text(f"# Goals on this GPU\n\n{dry}{table(options.out, names)}")
    return int(failed)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run, print the table."""
    parser = argparse.ArgumentParser(prog="python -m milkweed.bench.gpu_day", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("bench/results/gpu"), help="folder of the JSON files")
    parser.add_argument("--photos", type=Path, help="folder of JPEGs; made ones, unlike photographs, if not given")
    parser.add_argument("--bundle", type=Path, help="a real model, for numerics and servers")
    parser.add_argument("--bad", type=Path, help="folder of bad files")
    parser.add_argument("--cifar10", type=Path, help="folder of CIFAR-10 as JPEGs, for the step cifar10")
    parser.add_argument("--steps", nargs="+", metavar="STEP", help="some of the steps; all if not given")
    parser.add_argument("--round", type=int, default=1, help="2: measure all of it again, beside the first")
    parser.add_argument("--dry-run", action="store_true", help="walk the steps on a CPU; their figures are none")
    options = parser.parse_args(argv)
    known = [step.name for step in steps(argparse.Namespace(**{**vars(options), "steps": None}))]
    if unknown := set(options.steps or ()) - set(known):
        parser.error(f"--steps {' '.join(sorted(unknown))}: expected some of {', '.join(known)}")
    return day(options)


if __name__ == "__main__":
    raise SystemExit(main())
