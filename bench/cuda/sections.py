"""The kernels' sections of `bench/gpu.py`: each walks its shapes and batches until its share of the time is used up."""

import traceback
from collections.abc import Callable, Sequence
from functools import partial

from ...kernels.chain_ir import Problem
from ...kernels.impls.base import Impl
from ...kernels.tuning.chain import Chain
from ...kernels.tuning.tuner import TunedChain, tune_chain
from ...models import default_preprocess
from .attention import attention_rows
from .ceilings import Ceilings
from .cells import cell_rows
from .checks import ROWS, checks
from .forward import BATCHES as FORWARD_BATCHES
from .forward import forward_rows, monarch_model, random_config
from .forward import what as model_name
from .mlp import mlp_rows
from .precompile import precompile, triton_tasks
from .report import table
from .rows import Row
from .run import Run
from .shapes import ATTENTION_SHAPES, BATCHES, DRY_ATTENTION, DRY_MLP, MLP_SHAPES

PRECOMPILE_SECONDS = 90
"""For Triton, at most; what is left then is compiled when it is needed."""

COMPILE_SECONDS = 60
"""torch.compile takes about as long for a whole model; with less left it is not begun."""

Section = Callable[[Run, Sequence[Impl], Ceilings], None]


def check_section(run: Run, impls: Sequence[Impl], ceilings: Ceilings) -> None:
    """Every impl on ragged rows against float64."""
    for check in checks(
        run.device,
        run.dtype,
        impls,
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


def mlp_section(run: Run, impls: Sequence[Impl], ceilings: Ceilings) -> None:
    """MLPs of the published shapes."""
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
                impls=impls,
                timer=run.timer,
                ceilings=ceilings,
                tune=_tuner(impls),
                compile_seconds_left=lambda wanted=compile_it: (  # type: ignore[misc]
                    compile_until - run.seconds() if wanted else -1.0
                ),
            )
            _add(run, f"mlp {shape.name} batch {batch}", measured)


def attention_section(run: Run, impls: Sequence[Impl], ceilings: Ceilings) -> None:
    """Attention, PyTorch's backends each pinned."""
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
                impls=impls,
                timer=run.timer,
                ceilings=ceilings,
            )
            _add(run, f"attention {shape.name} batch {batch}", measured)


def cells_section(run: Run, impls: Sequence[Impl], ceilings: Ceilings) -> None:
    """ViTAE's cells."""
    for batch in (1,) if run.dry else (32, 1, 8, 128):
        if run.out_of_time("cells"):
            run.skipped.append(f"cells batch {batch}: out of time")
            continue
        measured = partial(
            cell_rows, batch, device=run.device, dtype=run.dtype, timer=run.timer, ceilings=ceilings, tiny=run.dry
        )
        _add(run, f"cells batch {batch}", measured)


def model_section(run: Run, impls: Sequence[Impl], ceilings: Ceilings) -> None:
    """Whole forwards."""
    rows, skipped = forward_rows(
        device=run.device,
        dtype=run.dtype,
        nblocks=run.nblocks,
        timer=run.timer,
        ceilings=ceilings,
        out_of_time=lambda: run.out_of_time("model"),
        compile_seconds_left=lambda: run.seconds_left("model") - COMPILE_SECONDS,
        models=run.models,
        batches=(1,) if run.dry else FORWARD_BATCHES,
    )
    run.skipped += skipped
    _add(run, "models", lambda: rows)


def tune_section(run: Run, impls: Sequence[Impl], ceilings: Ceilings) -> None:
    """Bring these models into the form they are served in: what the tuner finds for it is this device's preset."""
    from ...inference.open import InferenceOptions, prepare_model  # the other sections need no decoder

    options = InferenceOptions(tuning_cache=str(run.tuning_folder or "auto"))
    for arch, layers in run.models:
        if run.out_of_time("tune"):
            run.skipped.append(f"tune {model_name(arch, layers)}: out of time")
            continue
        began = run.seconds()
        model = monarch_model(arch, layers, run.nblocks)
        size = int(default_preprocess(arch)["size"])
        prepare_model(model, random_config(arch, model), run.device, run.dtype, size, options)
        run.tuned[model_name(arch, layers)] = round(run.seconds() - began, 1)
        run.say(f"tune {model_name(arch, layers)}: {run.tuned[model_name(arch, layers)]} s")


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


def _tuner(impls: Sequence[Impl]) -> Callable[[Chain, Problem], TunedChain]:
    """The product's own tuner, without its cache: every run measures."""
    return lambda chain, problem: tune_chain(chain, problem, impls)


KERNEL_SECTIONS: dict[str, Section] = {
    "check": check_section,
    "mlp": mlp_section,
    "attention": attention_section,
    "cells": cells_section,
    "model": model_section,
    "tune": tune_section,
}
