"""Creates a loader by name, or the fastest one of this machine."""

import logging
from dataclasses import replace
from importlib.util import find_spec
from typing import Literal

from ..kernels.installation import install_command
from .base import Loader
from .decode.cpu import CpuLoader
from .decode.dali_options import DEFAULT_DALI, DaliOptions
from .decode.pillow import PillowLoader
from .errors import LoaderError
from .headers.limits import DEFAULT_LIMITS, ImageLimits
from .preprocess.spec import PreprocessSpec
from .sandbox.sandbox import Sandbox

logger = logging.getLogger("milkweed.loaders")

LOADERS = ("auto", "cpu", "dali", "pillow")


def create_loader(
    name: str,
    spec: PreprocessSpec,
    limits: ImageLimits = DEFAULT_LIMITS,
    num_threads: int = 1,
    *,
    device: Literal["cpu", "gpu"] = "cpu",
    device_id: int = 0,
    dali: DaliOptions = DEFAULT_DALI,
    sandbox: Sandbox | None = None,
) -> Loader:
    """Create a loader; its `description` says what was chosen, and why.

    Args:
        name: "cpu" is the fast loader, "pillow" the exact one, "dali" NVIDIA's. "auto" is DALI where the model is on
            a GPU and DALI can be built for it, else the fast loader.
        num_threads: threads of the fast loader and of DALI's pool.
        device: where DALI decodes and puts its pixels; other loaders' pixels are on the CPU.
        sandbox: decodes the images that are `sandboxed`; several loaders can share one. None makes one.

    Raises:
        LoaderError: DALI is asked for by name, and is not installed or cannot be built here.
        ValueError: there is no such loader.
    """
    if name == "auto":
        name, why = fastest(device)
        try:
            loader = create_loader(
                name, spec, limits, num_threads, device=device, device_id=device_id, dali=dali, sandbox=sandbox
            )
        except LoaderError as error:
            logger.warning("loader auto: %s", error)
            loader, why = CpuLoader(spec, limits, num_threads, pin_memory=True, sandbox=sandbox), str(error)
        loader.description += f" (auto: {why})"
        return loader
    if name == "dali":
        try:
            from .decode.dali import DaliLoader
        except ModuleNotFoundError as error:  # PyTorch, which the extra brings
            raise LoaderError(f"loader dali needs {error.name}: {install_command('dali')}") from None
        options = dali if device == "gpu" else replace(dali, dtype="float32")
        return DaliLoader(spec, limits, num_threads, options, device=device, device_id=device_id, sandbox=sandbox)
    if name == "pillow":
        return PillowLoader(spec, limits, sandbox=sandbox)
    if name == "cpu":
        return CpuLoader(spec, limits, num_threads, pin_memory=device == "gpu", sandbox=sandbox)
    raise ValueError(f"loader is {name!r}: expected {', '.join(LOADERS)}")


def fastest(device: Literal["cpu", "gpu"]) -> tuple[str, str]:
    """Return what "auto" means for a model on that device, and why."""
    if device == "cpu":
        return "cpu", "the model is on the CPU, where it is quicker than DALI"
    if find_spec("nvidia") is None or find_spec("nvidia.dali") is None:
        return "cpu", f"nvidia-dali is not installed: {install_command('dali')}"
    from .decode.dali_graph import gpus

    if not gpus():
        return "cpu", "nvidia-dali sees no GPU"
    return "dali", "the model is on a GPU and nvidia-dali is installed"
