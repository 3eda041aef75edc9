"""Refuses programs of files that would lead the kernels out of their memory."""

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from ...kernels.cpu.program import Program
from ...kernels.cpu.shape_inference import infer_shapes

LARGEST = 1e30
"""An epsilon and the like are no larger."""


def check(program: Program) -> None:
    """Raise ValueError where parts of a program of floats do not fit each other, or a number is none."""
    infer_shapes(program)
    _check_numbers(program.embed, "embed")
    _check_numbers(program.head, "head")
    for place, operator in enumerate(program.operators):
        _check_numbers(operator, f"operator {place} ({type(operator).__name__})")


def _check_numbers(part: Any, where: str) -> None:
    for operator in part if isinstance(part, list) else [part]:
        for field in fields(operator):
            value, name = getattr(operator, field.name), field.name
            if isinstance(value, np.ndarray) and value.dtype != np.int64 and name not in ("quantiser", "scale"):
                right = value.dtype == np.float32 and bool(np.isfinite(value).all())
            elif name in ("eps", "protect"):
                right = type(value) in (int, float) and (0 if name == "protect" else 1e-30) <= value <= LARGEST
            else:
                right = name not in ("quantiser", "scale") or value is None
                if is_dataclass(value) or isinstance(value, list):
                    _check_numbers(value, where)
            if not right:
                raise ValueError(f"{where}: its {name} is no number, or none that is taken")
