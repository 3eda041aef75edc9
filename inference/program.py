"""Makes a forward of our own CPU kernels."""

import functools
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..loaders.base import Uint8Images
from ..models.bundle.config import OutputMeaning
from ..models.errors import ExportError
from ..models.programs.compact import int8_layers
from ..models.programs.session import ProgramSession
from .backend import BackendError
from .forward import Forward, LanePlan
from .results import ForwardResult

if TYPE_CHECKING:
    from torch import nn
    from torch.cuda import Event

    from ..models.programs.compact import Activations
    from ..models.programs.file import Program

logger = logging.getLogger("milkweed.inference")


@dataclass(frozen=True)
class ProgramPlan(LanePlan):
    """Cuts batches for our kernels. No forward is filled up, since an image's bits are the same in any company."""

    @functools.lru_cache(maxsize=256)  # noqa: B019 (a few plans live as long as the process)
    def cut(self, count: int) -> tuple[int, ...]:
        """Cut a batch into forwards for all lanes, none larger than the micro-batch.

        Returns:
            The sizes of the forwards, largest first.
        """
        size = min(self.micro_batch, math.ceil(count / self.lanes))
        whole, left = divmod(count, size)
        return (size,) * whole + (left,) * bool(left)


def program_forward(
    model: "nn.Module",
    plan: LanePlan,
    size: int,
    activations: "Activations | None" = None,
    output_meaning: OutputMeaning = "softmax",
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
    return session_forward(program, plan, size, output_meaning)


def session_forward(
    program: "Program", plan: LanePlan, size: int, output_meaning: OutputMeaning = "softmax"
) -> Forward:
    """Make the forward of a program.

    An image's answer is the same in any company and by any number of threads, since no row of a product knows of
    another. Each thread of the plan becomes a lane; those that have nothing to do help with the others' images.

    Raises:
        BackendError: the library is not there, or its kernels do not take the program's sizes.
    """
    threads = plan.lanes * plan.threads
    plan = ProgramPlan(plan.micro_batch, threads, 1, most_threads=min(plan.most_threads or threads, threads))
    try:
        session = ProgramSession(program, threads if plan.most_threads > 1 else 1)
    except (ExportError, ValueError) as error:
        raise BackendError(str(error)) from error
    dtype = "int8" if int8_layers(program) else "bfloat16"
    if session.threads < threads and plan.most_threads > 1:
        logger.warning("%d of %d threads could be started: an image has so many at most", session.threads, threads)
    return ProgramForward(
        session,
        plan,
        dtype=dtype,
        size=size,
        weight_bytes=session.weight_bytes,
        output_meaning=output_meaning,
        embedding_width=session.embedding_width,
    )


class ProgramForward(Forward):
    """A forward whose images may be computed by several threads each."""

    takes_uint8 = True
    _session: ProgramSession

    def _run(self, pixels: Any) -> ForwardResult:
        return self._run_in_lanes(pixels if isinstance(pixels, Uint8Images) else np.asarray(pixels))

    def joined(self, parts: Sequence[Any], ready: Iterable["Event"] = ()) -> Any:
        """One batch of several: of `Uint8Images` if all of them are."""
        if all(isinstance(part, Uint8Images) for part in parts):
            return Uint8Images(super().joined([part.pixels for part in parts]), parts[0].normal)
        return super().joined(parts, ready)

    def _outputs(self, images: Any, at_once: int) -> Any:
        # Idle threads are shared by the forwards that begin together; the first of them must not take all.
        return self._session.outputs(images, min(self.plan.most_threads, self.plan.lanes // at_once))
