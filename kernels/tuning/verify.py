"""Compares a runner with the plain evaluation in float64 on random inputs: a wrong kernel must not be chosen."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..chain_ir import Add, ChainOp, Problem, evaluate, knows_sizes
from ..impls.base import Call
from ..impls.torch_ops import EagerImpl
from .timing import Inputs

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 2e-2}
"""Relative error (Frobenius) that a segment may have, or `SLACK` times plain PyTorch's error if that is more."""

WORST = 5
"""An element's error may be so many times the tolerance, relative to its size plus the root mean square of all."""

SLACK = 2

INPUT_SETS = 3
IMAGES_AT_ONCE = 16


class TuningError(RuntimeError):
    """Raised if no impl gives a chain's right values, or if one broke the device."""


@dataclass(frozen=True)
class Errors:
    """The errors of a result; NaN if it is not finite.

    Args:
        relative: Frobenius norm of the difference over that of the right values.
        worst: largest difference of an element, over its size plus the root mean square of the right values.
    """

    relative: float
    worst: float


class Oracle:
    """Random inputs of a segment, and the right values for the first of them.

    Args:
        segment: the operators.
        width: features of the input.
        residual_width: features of the residual, 0 for none.
        images: how many images of the batch are compared, spread over it; all if None. The others are only checked for
            NaN and infinities.
    """

    def __init__(
        self, segment: Sequence[ChainOp], width: int, residual_width: int, problem: Problem, images: int | None = None
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
            residual = (normal(residual_width) * scale).to(problem.dtype) if residual_width else None
            self.inputs.append((x, normal(1)[..., 0].abs() if knows_sizes(segment) else residual))
        count = min(problem.batch, images or problem.batch)
        self.checked = torch.linspace(0, problem.batch - 1, count, device=problem.device).round().long()
        self.want = self._evaluate(*self.inputs[0])
        plain = self._errors(EagerImpl().build(segment, problem)(*self.inputs[0]))
        tolerance = TOLERANCE[problem.dtype]
        # max() keeps its first argument when the second is NaN.
        self.limit = Errors(max(tolerance, SLACK * plain.relative), max(WORST * tolerance, SLACK * plain.worst))

    def judge(self, run: Call) -> str | None:
        """Return why the runner's results cannot be trusted, in a few words; None if they can.

        Raises:
            Exception: whatever the runner raises, and a failed launch.
        """
        x, residual = self.inputs[0]
        inputs = [x] if residual is None else [x, residual]
        before = [tensor.clone() for tensor in inputs]
        got = run(x, residual)
        changed = not all(map(torch.equal, inputs, before))
        for tensor, value in zip(inputs, before, strict=True):
            tensor.copy_(value)  # the next runner gets the right input, whatever this one did
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
        """Evaluate the checked images in float64, some at a time."""
        parts = []
        for some in self.checked.split(IMAGES_AT_ONCE):
            parts.append(
                evaluate(self.segment, x[some].double(), None if residual is None else residual[some].double())
            )
        return torch.cat(parts)

    def _scale_of_branch(self, x: Tensor) -> float:
        """Return the root mean square of what the residual is added to; a residual of that size hides no error."""
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
    """Return the norm of the difference over that of `want`; infinite if shapes differ or values are not finite."""
    if got.shape != want.shape or not bool(got.isfinite().all()):
        return float("inf")
    return float((got.double() - want.double()).norm() / want.double().norm())


def failure(what: str, error: Exception, problem: Problem) -> str:
    """Return what an exception says, in a line.

    Raises:
        TuningError: the device no longer works, so no result of it can be trusted.
    """
    if problem.device.type == "cuda":
        try:
            torch.cuda.synchronize(problem.device)
        except RuntimeError:
            raise TuningError(f"{what} broke {problem.device}: {error}") from error
    first, *_ = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {first}"
