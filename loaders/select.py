"""Which loader serves: by name, or the fastest one this machine has."""

from typing import Literal

from .base import Loader
from .cpu_loader import CpuLoader
from .guard import DEFAULT_LIMITS, Limits
from .pillow_loader import PillowLoader
from .spec import PreprocessSpec

LOADERS = ("auto", "cpu", "dali", "pillow")


def create_loader(
    name: str,
    spec: PreprocessSpec,
    limits: Limits = DEFAULT_LIMITS,
    num_threads: int = 1,
    *,
    device: Literal["cpu", "gpu"] = "cpu",
) -> Loader:
    """Make a loader; its `description` says in words what was chosen.

    Args:
        name: "auto" and "cpu" are the fast loader, "pillow" is the exact one, "dali" is NVIDIA's.
        num_threads: of the fast loader and of DALI's pool.
        device: where DALI decodes, and where its pixels are; the others' are on the CPU.

    Raises:
        LoaderError: "dali", and it is not installed, or cannot be built here.
        ValueError: another name.
    """
    if name == "dali":
        from .dali_loader import DaliLoader

        return DaliLoader(spec, limits, num_threads, device=device)
    if name == "pillow":
        return PillowLoader(spec, limits)
    if name in ("auto", "cpu"):
        return CpuLoader(spec, limits, num_threads)
    raise ValueError(f"loader is {name!r}: expected {', '.join(LOADERS)}")
