"""Makes a forward of our own CPU kernels."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from ..models.bundle.config import BundleConfig
from ..models.bundle.program_record import read_activations
from ..models.errors import ExportError
from ..models.programs.session import ProgramSession
from .backend import BackendError
from .forward import Forward, LanePlan

if TYPE_CHECKING:
    from ..models.programs.int8 import Activations


def program_forward(model: nn.Module, plan: LanePlan, size: int, activations: "Activations | None" = None) -> Forward:
    """Make the forward of a model as `load_bundle` gives it, in int8 where there are activations, else in bfloat16.

    An image's answer is the same in any company, since no row of a product knows of another. One thread computes an
    image, so each thread of the plan becomes a lane.

    Raises:
        BackendError: the library is not there, or has no operator for a part of the model.
    """
    # Not before they are needed: they bring what a GPU is planned by.
    from ..models.programs.from_model import program_of
    from ..models.programs.int8 import int8_program
    from ..models.serving.fused.chains import NotFusable

    plan = replace(plan, lanes=plan.lanes * plan.threads, threads=1)
    try:
        program = program_of(model, size) if activations is None else int8_program(model, size, activations)
        session = ProgramSession(program, plan.micro_batch)
    except (NotFusable, ExportError, ValueError) as error:
        raise BackendError(str(error)) from error
    dtype = torch.bfloat16 if activations is None else torch.int8
    device = torch.device("cpu")
    return Forward(session, plan, device=device, dtype=dtype, size=size, weight_bytes=session.weight_bytes)


def own_activations(bundle: Path, config: BundleConfig) -> "Activations | None":
    """The activations of a bundle for the CPU kernels; None where it computes in bfloat16.

    Raises:
        BundleError: the file is not as it has to be.
    """
    if config.program is None or config.program.precision != "int8":
        return None
    return read_activations(bundle)
