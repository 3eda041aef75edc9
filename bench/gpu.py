"""Builds, checks and times the GPU kernels in one run of under ten minutes: rows, goals, JSON and a roofline plot.

    python -m milkweed.bench.gpu [--out bench/results/gpu.json]

Needs a CUDA device and PyTorch from 2.10 on; nvcc builds the kernel library, without it (or without Triton, timm,
matplotlib) the rows that need it say so. `--dry-run` walks the same path on a CPU with tiny shapes: it proves the
script, and its figures are none.

Protocol: ceilings first (copy bandwidth, one large matrix product), then every engine is checked on ragged rows
against float64, then candidates are timed interleaved as CUDA graphs of 20 calls, medians of up to 50 replays, warm
(one input) and cold (inputs that rotate through more than the level-2 cache); clocks are logged at each section.
"""

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..kernels.engines.base import Engine
from ..kernels.engines.native import native_engines
from ..kernels.engines.registry import all_engines
from ..kernels.operators import Problem
from ..kernels.tuning.chain import Chain
from ..kernels.tuning.tuner import TunedChain, tune_chain
from ..models.provenance import library_versions
from .cuda.attention import attention_rows
from .cuda.ceilings import Ceilings, clocks, device_facts, measure_ceilings
from .cuda.cells import cell_rows
from .cuda.checks import ROWS, Check, checks
from .cuda.forward import BATCHES as FORWARD_BATCHES
from .cuda.forward import MODELS, forward_rows
from .cuda.library import ready_library
from .cuda.mlp import mlp_rows
from .cuda.precompile import precompile, triton_tasks
from .cuda.report import goal_lines, goals, plot_roofline, table
from .cuda.rows import Row
from .cuda.shapes import ATTENTION_SHAPES, BATCHES, DRY_ATTENTION, DRY_MLP, MLP_SHAPES
from .cuda.timing import CudaTimer, HostTimer, Timer
from .machine import machine

SECTIONS = ("check", "mlp", "attention", "cells", "model")

SHARE = {"check": 0.25, "mlp": 0.7, "attention": 0.8, "cells": 0.87, "model": 1.0}
"""Of the time limit: when each section must be done; what is not reached by then is listed as skipped."""

PRECOMPILE_SECONDS = 90
"""For Triton, at most; what is left then is compiled when it is needed."""


@dataclass
class Run:
    """One run: what it measures with, and what it has found."""

    device: torch.device
    dtype: torch.dtype
    dry: bool
    nblocks: int
    limit_seconds: float
    compile_seconds: float
    timer: Timer
    check_rows: Sequence[int] = ROWS
    began: float = field(default_factory=time.perf_counter)
    rows: list[Row] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    clocks: dict[str, str] = field(default_factory=dict)

    def seconds(self) -> float:
        """Since the run began."""
        return time.perf_counter() - self.began

    def out_of_time(self, section: str) -> bool:
        """The section's share of the limit is used up."""
        return self.seconds() > SHARE[section] * self.limit_seconds

    def say(self, text: str) -> None:
        """A line with the time, at once."""
        print(f"[{self.seconds():6.1f} s] {text}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, write; 1 when a check failed, 2 when there is nothing to run on."""
    options = _parser().parse_args(argv)
    if not options.dry_run and not torch.cuda.is_available():
        print("no CUDA device: nothing was measured (--dry-run walks the script on a CPU)", file=sys.stderr)
        return 2
    with torch.inference_mode():
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    dry = options.dry_run
    device = torch.device("cpu") if dry else torch.device("cuda", torch.cuda.current_device())
    dtype = getattr(torch, options.dtype)
    timer: Timer = HostTimer() if dry else CudaTimer(device)
    run = Run(device, dtype, dry, options.nblocks, options.limit_seconds, options.compile_seconds, timer, options.rows)
    torch.manual_seed(0)
    facts = device_facts(device)
    run.say(", ".join(f"{name} {value}" for name, value in facts.items()))
    library = ready_library(device, build_it=not options.no_build)
    run.say(f"kernel library: {library}")
    ceilings = measure_ceilings(device, dtype, timer, tiny=dry)
    run.say(
        f"ceilings: copy {ceilings.bytes_per_second / 1e12:.2f} TB/s, "
        f"{options.dtype} product {ceilings.flops_per_second / 1e12:.0f} TFLOP/s"
    )
    engines = all_engines()
    if dry:
        engines = [*native_engines(on_cpu=True), *(e for e in engines if not e.name.startswith("native"))]
    sections: dict[str, Callable[[Run, Sequence[Engine], Ceilings], None]] = {
        "check": _check,
        "mlp": _mlp,
        "attention": _attention,
        "cells": _cells,
        "model": _model,
    }
    for name in options.sections:
        run.say(f"{name}; clocks: {clocks(device)}")
        try:
            sections[name](run, engines, ceilings)
        except Exception as error:  # one section must not cost the others their figures
            traceback.print_exc()
            run.skipped.append(f"{name}: ended by {type(error).__name__}: {error}"[:300])
        run.clocks[name] = clocks(device)
    return _finish(run, options, facts, library, ceilings)


def _check(run: Run, engines: Sequence[Engine], ceilings: Ceilings) -> None:
    for check in checks(
        run.device,
        run.dtype,
        engines,
        nblocks=run.nblocks,
        shapes=[DRY_MLP] if run.dry else MLP_SHAPES,
        rows=ROWS[:2] if run.dry else run.check_rows,
        out_of_time=lambda: run.out_of_time("check"),
    ):
        run.checks.append(check)
        if not check.passed:
            run.say(f"FAILED {check}")
    if run.out_of_time("check"):
        run.skipped.append(f"check: out of time after {len(run.checks)} checks")
    failed = sum(not check.passed for check in run.checks)
    worst = max((check.error for check in run.checks if check.passed), default=0.0)
    run.say(f"{len(run.checks)} checks, {failed} failed, largest error of those that passed {worst:.2e}")


def _mlp(run: Run, engines: Sequence[Engine], ceilings: Ceilings) -> None:
    compile_until = run.seconds() + run.compile_seconds
    # Goals first, largest batches first: what matters most is there if time runs out.
    shapes = [DRY_MLP] if run.dry else sorted(MLP_SHAPES, key=lambda shape: shape.goal is None)
    batches = (2, 1) if run.dry else (32, 128, 8, 1)
    if not run.dry:
        tasks = triton_tasks(shapes, batches, nblocks=run.nblocks, device=run.device, dtype=run.dtype)
        run.say(f"Triton: {precompile(tasks, PRECOMPILE_SECONDS)}")
    for batch in batches:
        for shape in shapes:
            if run.out_of_time("mlp"):
                run.skipped.append(f"mlp {shape.name} batch {batch}: out of time")
                continue
            compile_it = batch >= 32 and shape.goal is not None
            measured = partial(
                mlp_rows,
                shape,
                batch,
                nblocks=run.nblocks,
                device=run.device,
                dtype=run.dtype,
                engines=engines,
                timer=run.timer,
                ceilings=ceilings,
                tune=_tuner(engines),
                compile_seconds_left=lambda wanted=compile_it: (  # type: ignore[misc]
                    compile_until - run.seconds() if wanted else -1.0
                ),
            )
            _add(run, f"mlp {shape.name} batch {batch}", measured)


def _attention(run: Run, engines: Sequence[Engine], ceilings: Ceilings) -> None:
    for shape in [DRY_ATTENTION] if run.dry else ATTENTION_SHAPES:
        for batch in (2,) if run.dry else BATCHES:
            if run.out_of_time("attention"):
                run.skipped.append(f"attention {shape.name} batch {batch}: out of time")
                continue
            measured = partial(
                attention_rows,
                shape,
                batch,
                device=run.device,
                dtype=run.dtype,
                engines=engines,
                timer=run.timer,
                ceilings=ceilings,
            )
            _add(run, f"attention {shape.name} batch {batch}", measured)


def _cells(run: Run, engines: Sequence[Engine], ceilings: Ceilings) -> None:
    for batch in (1,) if run.dry else (32, 1, 8, 128):
        if run.out_of_time("cells"):
            run.skipped.append(f"cells batch {batch}: out of time")
            continue
        measured = partial(
            cell_rows, batch, device=run.device, dtype=run.dtype, timer=run.timer, ceilings=ceilings, tiny=run.dry
        )
        _add(run, f"cells batch {batch}", measured)


def _model(run: Run, engines: Sequence[Engine], ceilings: Ceilings) -> None:
    rows, skipped = forward_rows(
        device=run.device,
        dtype=run.dtype,
        nblocks=run.nblocks,
        timer=run.timer,
        ceilings=ceilings,
        out_of_time=lambda: run.out_of_time("model"),
        models=MODELS[:1] if run.dry else MODELS,
        batches=(1,) if run.dry else FORWARD_BATCHES,
    )
    run.skipped += skipped
    _add(run, "models", lambda: rows)


def _add(run: Run, what: str, measured: Callable[[], list[Row]]) -> None:
    """Measure, keep and print rows; where that fails, say so and go on with the next."""
    try:
        rows = measured()
    except Exception as error:
        traceback.print_exc()
        run.skipped.append(f"{what}: {type(error).__name__}: {error}"[:300])
        return
    run.rows += rows
    for line in table(rows):
        print(line, flush=True)


def _finish(run: Run, options: argparse.Namespace, facts: dict[str, Any], library: str, ceilings: Ceilings) -> int:
    found = goals(run.rows)
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
        "goals": found,
        "rows": [row.as_json() for row in run.rows],
        "checks": [{**asdict(check), "error": str(check.error)} for check in run.checks if not check.passed],
        "checks_passed": sum(check.passed for check in run.checks),
        "skipped": run.skipped,
    }
    print("\ngoals:" if not run.dry else "\ngoals (a dry run: none of these is a figure):")
    for line in goal_lines(found):
        print(line)
    for line in run.skipped:
        print(f"  skipped  {line}")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
        print(f"written: {options.out}")
        print(plot_roofline(run.rows, ceilings, options.out.with_suffix(".png")))
    return 1 if any(not check.passed for check in run.checks) else 0


def _tuner(engines: Sequence[Engine]) -> Callable[[Chain, Problem], TunedChain]:
    """The product's own tuner, without its cache: every run measures."""
    return lambda chain, problem: tune_chain(chain, problem, engines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m milkweed.bench.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write JSON here, and the plot beside it")
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--nblocks", type=int, choices=(2, 4, 8), default=4, help="blocks of each Monarch factor")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--rows", nargs="+", type=int, default=list(ROWS), help="row counts that are checked")
    parser.add_argument("--limit-seconds", type=float, default=540, help="of the whole run")
    parser.add_argument("--compile-seconds", type=float, default=120, help="of it for torch.compile's rows")
    parser.add_argument("--no-build", action="store_true", help="take the kernel library as it is")
    parser.add_argument("--dry-run", action="store_true", help="walk the script on a CPU; its figures are none")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
