"""Builds, checks and times the GPU kernels in one run of under ten minutes: rows, goals, JSON and a roofline plot.

    python -m milkweed.bench.gpu [--out bench/results/gpu.json]
    python -m milkweed.bench.gpu --sections images --photos DIR --out bench/results/gpu_images.json

Needs a CUDA device and PyTorch from 2.10 on; nvcc builds the kernel library, without it (or without Triton, timm,
matplotlib) the rows that need it say so. `--dry-run` walks the same path on a CPU with tiny shapes: it proves the
script, and its figures are none.

Protocol: ceilings first (copy bandwidth, one large matrix product), then every impl is checked on ragged rows
against float64, then candidates are timed interleaved as CUDA graphs of 20 calls, medians of up to 50 replays, warm
(one input) and cold (inputs that rotate through more than the level-2 cache); clocks are logged at each section.
Only where they are asked for: `tune`, in which the product's tuner writes this device's preset, and `images`, decoding
on the GPU and what a server makes of it (`bench/cuda/images/`). `bench.gpu_day` runs all of them, step by step.
"""

import argparse
import json
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from ..kernels.impls.all import all_impls
from ..kernels.impls.native import native_impls
from ..models.bundle.provenance import library_versions
from .cuda.ceilings import LARGE, TINY, Ceilings, clocks, device_facts, measure_ceilings
from .cuda.checks import ROWS
from .cuda.forward import DRY_MODEL, MODELS
from .cuda.library import ready_library
from .cuda.report import goal_lines, goals
from .cuda.run import IMAGE_PARTS, SECTIONS, Run
from .cuda.sections import KERNEL_SECTIONS
from .cuda.timing import CudaTimer, HostTimer, Timer
from .machine import machine


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, write; 1 when a check failed, 2 when there is nothing to run on."""
    options = _parser().parse_args(argv)
    if not options.dry_run and not torch.cuda.is_available():
        print("no CUDA device: nothing was measured (--dry-run walks the script on a CPU)", file=sys.stderr)
        return 2
    with torch.inference_mode():
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    run = _start(options)
    torch.manual_seed(0)
    facts = device_facts(run.device)
    run.say(", ".join(f"{name} {value}" for name, value in facts.items()))
    library = ready_library(run.device, build_it=not options.no_build)
    run.say(f"kernel library: {library}")
    ceilings = measure_ceilings(run.device, run.dtype, run.timer, sizes=TINY if run.dry else LARGE)
    run.say(
        f"ceilings: copy {ceilings.bytes_per_second / 1e12:.2f} TB/s, "
        f"{options.dtype} product {ceilings.flops_per_second / 1e12:.0f} TFLOP/s"
    )
    impls = all_impls()
    if run.dry:
        impls = [*native_impls(on_cpu=True), *(e for e in impls if not e.name.startswith("native"))]
    for name in options.sections:
        run.say(f"{name}; clocks: {clocks(run.device)}")
        try:
            if name == "images":
                from .cuda.images.section import images_section  # it needs decoders, the kernels do not

                images_section(run, options, lambda: _write(run, options, facts, library, ceilings))
            else:
                KERNEL_SECTIONS[name](run, impls, ceilings)
        except Exception as error:  # one section must not cost the others their figures
            traceback.print_exc()
            run.skipped.append(f"{name}: ended by {type(error).__name__}: {error}"[:300])
        run.clocks[name] = clocks(run.device)
    return _finish(run, options, facts, library, ceilings)


def _start(options: argparse.Namespace) -> Run:
    dry = options.dry_run
    device = torch.device("cpu") if dry else torch.device("cuda", torch.cuda.current_device())
    timer: Timer = HostTimer() if dry else CudaTimer(device)
    return Run(
        device,
        getattr(torch, options.dtype),
        dry,
        options.nblocks,
        options.limit_seconds,
        options.compile_seconds,
        timer,
        options.rows,
        options.sections,
        [DRY_MODEL] if dry else [model for model in MODELS if not options.models or model[0] in options.models],
        options.tuning_folder,
    )


def _finish(run: Run, options: argparse.Namespace, facts: dict[str, Any], library: str, ceilings: Ceilings) -> int:
    print("\ngoals:" if not run.dry else "\ngoals (a dry run: none of these is a figure):")
    for line in goal_lines(_goals(run)):
        print(line)
    for line in run.skipped:
        print(f"  skipped  {line}")
    if options.out:
        _write(run, options, facts, library, ceilings)
        print(f"written: {options.out}")
        print("no roofline of a dry run: it has no figures" if run.dry else _plot(options.out))
    failed = any(not check.passed for check in run.checks) or bool(run.images.get("failed"))
    return 1 if failed else 0


def _write(run: Run, options: argparse.Namespace, facts: dict[str, Any], library: str, ceilings: Ceilings) -> None:
    """What was found so far: what ends the process then does not take it along."""
    if not options.out:
        return
    result = {
        "benchmark": "gpu",
        "dry_run": run.dry,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(run.seconds(), 1),
        "device": facts,
        "machine": machine(),
        "versions": library_versions(),
        "library": library,
        "settings": {"dtype": options.dtype, "nblocks": run.nblocks, "limit_seconds": run.limit_seconds},
        "ceilings": asdict(ceilings),
        "clocks": run.clocks,
        "goals": _goals(run),
        "rows": [row.as_json() for row in run.rows],
        "checks": [{**asdict(check), "error": str(check.error)} for check in run.checks if not check.passed],
        "checks_passed": sum(check.passed for check in run.checks),
        "tuned_seconds": run.tuned,
        "images": run.images,
        "skipped": run.skipped,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")


def _plot(out: Path) -> str:
    """Draw the JSON; a line that says what was done, or why not."""
    from .plots import kernels as plot

    try:
        return f"roofline plot: {plot(json.loads(out.read_text()), out.with_suffix('.png'))}"
    except (ImportError, ValueError) as error:
        return f"no roofline plot: {error}"


def _goals(run: Run) -> list[dict[str, object]]:
    return [*goals(run.rows), *run.images.get("goals", [])]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m milkweed.bench.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write JSON here, and the plot beside it")
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--nblocks", type=int, choices=(2, 4, 8), default=4, help="blocks of each Monarch factor")
    parser.add_argument(
        "--sections",
        nargs="+",
        choices=SECTIONS,
        default=[name for name in SECTIONS if name not in ("tune", "images")],
        help="all but tune and images if not given",
    )
    parser.add_argument("--rows", nargs="+", type=int, default=list(ROWS), help="row counts that are checked")
    names = list(dict.fromkeys(arch for arch, _ in MODELS))
    parser.add_argument("--models", nargs="+", choices=names, metavar="ARCH", help="some of those of model and tune")
    parser.add_argument("--tuning-folder", type=Path, help="where `tune` writes this device's preset")
    parser.add_argument("--limit-seconds", type=float, default=540, help="of the whole run")
    parser.add_argument("--compile-seconds", type=float, default=120, help="of it for torch.compile's rows")
    parser.add_argument("--no-build", action="store_true", help="take the kernel library as it is")
    parser.add_argument("--dry-run", action="store_true", help="walk the script on a CPU; its figures are none")
    images = parser.add_argument_group("images")
    images.add_argument("--photos", type=Path, help="folder of JPEGs; made ones, unlike photographs, if not given")
    images.add_argument("--bad", type=Path, help="folder of bad files, beside those made of the photographs")
    images.add_argument("--bundle", type=Path, help="what is served; a DeiT-Tiny of random weights if not given")
    images.add_argument("--parts", nargs="+", choices=IMAGE_PARTS, default=IMAGE_PARTS, help="some of its parts")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
