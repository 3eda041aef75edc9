"""Makes the rows of one shape and batch: every candidate is checked, and those that are right are timed in turns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ...kernels.impls.all import all_impls
from ...kernels.impls.base import Impl
from ...kernels.impls.native import native_impls
from ...kernels.impls.quantized import quantized_impls
from ...kernels.impls.quarantine import with_quarantine
from ...kernels.impls.triton import triton_impls
from ...kernels.tuning.verify import relative_error
from ...models.serving.fused.alternatives import joined
from ...models.serving.fused.device_kernels import DeviceKernels, device_kernels
from .device import Ceilings, device_for, time_calls
from .journal import Record, one_line, read, rows
from .plan import Task

TOLERANCE = {torch.bfloat16: 6e-3, torch.float16: 2e-3, torch.float32: 1e-4}
"""Largest relative Frobenius error against float64 on the same rounded inputs that a row may have to be timed."""

SHARED_LIMIT = 227 * 1024
"""Bytes of shared memory a block on an H100, which dry runs reckon with."""

ALWAYS = ("torch", "dense", "batched", "sdpa", "triton_quantized")
"""Families of impls that a model may use whatever the rows of its MLPs and its attention say."""

Forward = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Bench:
    """What rows are measured with.

    Args:
        earlier: the rows that there were before this process.
        rounds: of timing on a CPU.
    """

    device: torch.device
    dtype: torch.dtype
    nblocks: int
    impls: Sequence[Impl]
    ceilings: Ceilings
    earlier: Sequence[Record] = ()
    dry: bool = False
    rounds: int = 1

    def kernels(self) -> DeviceKernels:
        """Return the compiled kernels that are no impls."""
        return DeviceKernels("dry run", None, SHARED_LIMIT) if self.dry else device_kernels(self.device)

    def best(self) -> set[str]:
        """Return the names of impls that rows of MLPs and attention have timed, each the best of its family."""
        timed = [row for row in self.earlier if row["section"] in ("mlp", "attention") and row["us"]]
        return {name for row in timed for name in row["impls"]}

    def proven(self) -> list[Impl]:
        """Return the impls that were the best of their family; all if there are no rows.

        So a model uses the plans that were measured for them, and few candidates are timed for it.
        """
        best = self.best()
        kept = [impl for impl in self.impls if impl.name in best or impl.name.startswith(ALWAYS)]
        return kept if any(not impl.name.startswith(ALWAYS) for impl in kept) else list(self.impls)


def bench_of(task: Task) -> Bench:
    """Make what a task measures with: the ceilings are those of earlier rows; in a dry run the kernels' CPU
    implementations stand for them."""
    torch.manual_seed(0)
    earlier, impls = rows(read(Path(task.out))), all_impls()
    if task.dry_run:
        ours = [*native_impls(on_cpu=True), *quantized_impls(on_cpu=True), *triton_impls(on_cpu=True)]
        names = {impl.name for impl in ours}
        impls = with_quarantine([*ours, *(impl for impl in impls if impl.name not in names)])
    limits = [row for row in earlier if row["section"] == "ceilings"]
    ceilings = Ceilings(limits[-1]["bytes_per_second"], limits[-1]["flops_per_second"]) if limits else Ceilings()
    dtype = getattr(torch, task.dtype)
    return Bench(device_for(task), dtype, task.nblocks, impls, ceilings, earlier, task.dry_run)


class Work(NamedTuple):
    """What an algorithm cannot avoid: operations, and bytes to and from memory."""

    flops: float
    moved_bytes: float


@dataclass(frozen=True)
class Candidate:
    """Something to check and time.

    Args:
        ours: it is milkweed's own way, not a peer.
        forward: a pure function of the input; or the reason why there is none, in a few words.
        note: how it is made, for a person.
        impls: which impls it is made of.
        eager: it is launched call by call, where all others are CUDA graphs.
        truth: the right answer; None for that of all candidates.
        tolerance: relative error that it may have; None for that of all candidates.
    """

    name: str
    ours: bool
    forward: Forward | str
    work: Work
    note: str = ""
    impls: Sequence[str] = ()
    eager: bool = False
    truth: Forward | None = None
    tolerance: float | None = None


def measure(
    where: tuple[str, str, int],
    x: Tensor,
    truth: Forward,
    candidates: Sequence[Candidate],
    bench: Bench,
    tolerance: float | None = None,
) -> list[Record]:
    """Check every candidate, then time those that are right, interleaved.

    Args:
        where: the rows' section, shape and batch.
        truth: computes the float64 answer.
        tolerance: relative error that a candidate may have; TOLERANCE of the input's dtype when None.

    Returns:
        One row a candidate. `us` is None where it did not run, and `note` says why. `floor_us` is the least time of its
        work. `passed` is whether the result was right, None where there was none.
    """
    answers: dict[Forward, Tensor] = {}
    made: list[Record] = []
    (section, what, batch), limit = where, tolerance or TOLERANCE[x.dtype]
    for candidate in candidates:
        right = candidate.truth or truth
        if right not in answers:
            answers[right] = right(x)
        row = {"section": section, "what": what, "batch": batch, "candidate": candidate.name, "ours": candidate.ours}
        row |= _checked(candidate, x, answers[right], candidate.tolerance or limit)
        floor = bench.ceilings.floor_us(candidate.work)
        made.append({**row, "impls": list(candidate.impls), **candidate.work._asdict(), "floor_us": floor})
    pairs = list(zip(candidates, made, strict=True))
    calls = {c.name: partial(c.forward, x) for c, row in pairs if row["passed"] and not isinstance(c.forward, str)}
    timings = time_calls(bench.device, calls, {c.name for c in candidates if c.eager}, bench.rounds)
    for candidate, row in pairs:
        if candidate.name in timings:
            row |= {"note": candidate.note, **timings[candidate.name]}
    return made


def _checked(candidate: Candidate, x: Tensor, right: Tensor, limit: float) -> Record:
    """Return the relative error of a candidate and whether it is right, both None where it does not run; and a note for
    where it is not timed."""
    reason = candidate.forward
    if not isinstance(reason, str):
        try:
            error = relative_error(joined(reason(x)).double(), right)  # not all of PyTorch knows float8
            note = f"wrong, not timed: relative error {error:.2e}"
            return {"error": error, "passed": error <= limit, "us": None, "note": note}
        except Exception as failure:  # said in the row; the others go on
            reason = one_line(failure)
    return {"error": None, "passed": None, "us": None, "note": reason}
