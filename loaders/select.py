"""Which loader serves: by name, or the fastest one this machine has."""

from .base import Loader
from .cpu_loader import CpuLoader
from .guard import DEFAULT_LIMITS, Limits
from .pillow_loader import PillowLoader
from .spec import PreprocessSpec

LOADERS = ("auto", "cpu", "pillow")


def create_loader(name: str, spec: PreprocessSpec, limits: Limits = DEFAULT_LIMITS, num_threads: int = 1) -> Loader:
    """Make a loader; its `description` says in words what was chosen.

    Args:
        name: "auto" and "cpu" are the fast loader, "pillow" is the exact one.
        num_threads: of the fast loader.
    """
    if name == "pillow":
        return PillowLoader(spec, limits)
    if name in ("auto", "cpu"):
        return CpuLoader(spec, limits, num_threads)
    raise ValueError(f"loader is {name!r}: expected {', '.join(LOADERS)}")
