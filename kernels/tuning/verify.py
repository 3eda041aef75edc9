"""Holds a runner against the plain evaluation in float64, on random inputs: a wrong kernel must not be chosen."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..chain_ir import Add, Operator, Problem, evaluate
from ..impls.base import Call
from ..impls.torch_ops import EagerEngine
from .timing import Inputs

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 2e-2}
"""Relative error, Frobenius, that a segment may have; where plain PyTorch has more, `SLACK` times that."""

WORST = 5
"""How many times that an element may be off, relative to its own size and the root mean square of all."""

SLACK = 2

INPUT_SETS = 3
IMAGES_AT_ONCE = 16


class TuningError(RuntimeError):
    """No engine gives a chain's right values, or one broke the device."""


@dataclass(frozen=True)
class Errors:
    """How far a result is from the truth; NaN where it is not finite.

    Args:
        relative: Frobenius norm of the difference over that of the truth.
        worst: the greatest difference of an element, over its size plus the root mean square of the truth.
    """

    relative: float
    worst: float


class Truth:
    """A segment's inputs on a problem, and what it should give for the first of them.

    Args:
        segment: the operators.
        width: features of the input.
        residual_width: features of the residual, 0 for none.
        images: how many of the batch are held against the truth, spread over it; all of them when None. What is left
            out is only looked at for NaN and infinities.
    """

    def __init__(
        self, segment: Sequence[Operator], width: int, residual_width: int, problem: Problem, images: int | None = None
    ) -> None:
        self.segment, self.problem = segment, problem
        generator = torch.Generator(problem.device).manual_seed(0)

        def normal(features: int) -> Tensor:
            shape = (problem.batch, problem.tokens, features)
            return torch.randn(shape, generator=generator, device=problem.device, dtype=torch.float32)

        scale = 1.0
        self.inputs: list[Inputs] = []
        for _ in range(INPUT_SETS):
            x = normal(width).to(problem.dtype)
            if residual_width and not self.inputs:
                scale = self._scale_of_branch(x)
            self.inputs.append((x, (normal(residual_width) * scale).to(problem.dtype) if residual_width else None))
        count = min(problem.batch, images or problem.batch)
        self.checked = torch.linspace(0, problem.batch - 1, count, device=problem.device).round().long()
        self.want = self._evaluate(*self.inputs[0])
        plain = self._errors(EagerEngine().build(segment, problem)(*self.inputs[0]))
        tolerance = TOLERANCE[problem.dtype]
        # max() keeps its first argument when the second is NaN.
        self.limit = Errors(max(tolerance, SLACK * plain.relative), max(WORST * tolerance, SLACK * plain.worst))

    def judge(self, run: Call) -> str | None:
        """Why the runner's results cannot be trusted, in a few words; None when they can.

        Raises:
            Exception: whatever the runner raises, of a launch that failed too.
        """
        x, residual = self.inputs[0]
        given = [x] if residual is None else [x, residual]
        before = [tensor.clone() for tensor in given]
        got = run(x, residual)
        changed = not all(map(torch.equal, given, before))
        for tensor, value in zip(given, before, strict=True):
            tensor.copy_(value)  # the next runner gets what it should, whatever this one did
        if changed:
            return "changes its input"
        expected = (*x.shape[:-1], self.want.shape[-1])
        if got.shape != expected or got.dtype != self.problem.dtype:
            return f"gives {tuple(got.shape)} of {got.dtype}, not {expected} of {self.problem.dtype}"
        errors = self._errors(got)
        if not (errors.relative <= self.limit.relative and errors.worst <= self.limit.worst):
            return f"relative error {errors.relative:.1e} (may be {self.limit.relative:.1e}), worst {errors.worst:.1e}"
        return None

    def _evaluate(self, x: Tensor, residual: Tensor | None) -> Tensor:
        """The plain evaluation in float64 of the checked images, some at a time."""
        parts = []
        for some in self.checked.split(IMAGES_AT_ONCE):
            parts.append(
                evaluate(self.segment, x[some].double(), None if residual is None else residual[some].double())
            )
        return torch.cat(parts)

    def _scale_of_branch(self, x: Tensor) -> float:
        """Root mean square of what the residual is added to: a residual of that size hides no error of the branch."""
        first = next(i for i, operator in enumerate(self.segment) if isinstance(operator, Add))
        return float(evaluate(self.segment[:first], x[:1].double()).square().mean().sqrt())

    def _errors(self, got: Tensor) -> Errors:
        if not bool(got.isfinite().all()):
            return Errors(float("nan"), float("nan"))
        difference = (got[self.checked].double() - self.want).abs()
        mean = self.want.square().mean().sqrt().clamp_min(1e-300)
        worst = (difference / (mean + self.want.abs())).max()
        return Errors(float(difference.square().mean().sqrt() / mean), float(worst))


def relative_error(got: Tensor, want: Tensor) -> float:
    """Frobenius norm of the difference over that of `want`; infinite where shapes differ or a value is not finite."""
    if got.shape != want.shape or not bool(got.isfinite().all()):
        return float("inf")
    return float((got.double() - want.double()).norm() / want.double().norm())


def failure(what: str, error: Exception, problem: Problem) -> str:
    """What an exception says, in a line.

    Raises:
        TuningError: the device no longer works: nothing that ran on it can be believed, and nothing more will run.
    """
    if problem.device.type == "cuda":
        try:
            torch.cuda.synchronize(problem.device)
        except RuntimeError:
            raise TuningError(f"{what} broke {problem.device}: {error}") from error
    first, *_ = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {first}"
