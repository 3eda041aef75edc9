"""Makes a forward of our own CPU kernels."""

from dataclasses import replace
from typing import TYPE_CHECKING

from ..models.errors import ExportError
from ..models.programs.compact import is_int8
from ..models.programs.session import ProgramSession
from .backend import BackendError
from .forward import Forward, LanePlan

if TYPE_CHECKING:
    from torch import nn

    from ..models.programs.compact import Activations
    from ..models.programs.file import Program


def program_forward(
    model: "nn.Module", plan: LanePlan, size: int, activations: "Activations | None" = None, multi_label: bool = False
) -> Forward:
    """Make the forward of a model as `load_bundle` gives it, in int8 where there are activations, else in bfloat16.

    Raises:
        BackendError: the library is not there, or has no operator for a part of the model.
    """
    # Not before they are needed: they bring torch and what a GPU is planned by.
    from ..models.programs.from_model import program_of
    from ..models.programs.int8 import int8_program
    from ..models.serving.fused.chains import NotFusable

    try:
        program = program_of(model, size) if activations is None else int8_program(model, size, activations)
    except (NotFusable, ValueError) as error:
        raise BackendError(str(error)) from error
    return session_forward(program, plan, size, multi_label)


def session_forward(program: "Program", plan: LanePlan, size: int, multi_label: bool = False) -> Forward:
    """Make the forward of a program.

    An image's answer is the same in any company, since no row of a product knows of another. One thread computes an
    image, so each thread of the plan becomes a lane.

    Raises:
        BackendError: the library is not there, or its kernels do not take the program's sizes.
    """
    plan = replace(plan, lanes=plan.lanes * plan.threads, threads=1)
    try:
        session = ProgramSession(program)
    except (ExportError, ValueError) as error:
        raise BackendError(str(error)) from error
    dtype = "int8" if is_int8(program) else "bfloat16"
    weight_bytes = session.weight_bytes
    return Forward(session, plan, dtype=dtype, size=size, weight_bytes=weight_bytes, multi_label=multi_label)
