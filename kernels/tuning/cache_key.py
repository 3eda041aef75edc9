"""What a measurement depends on, as the text that it is kept under: shapes, and everything that could change times."""

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import torch

from ..chain_ir import Problem
from ..impls.base import Engine
from .chain import Chain


def tuning_key(chain: Chain, problem: Problem, engines: Sequence[Engine]) -> str:
    """Equal for problems that the same plan is best for, as far as anyone can tell without measuring."""
    parts = [chain.describe(), problem.describe(), f"engines={_digest(engines)}", *_versions()]
    if problem.device.type == "cpu":
        parts.append(f"threads={torch.get_num_threads()}")
    return ";".join(parts)


def _digest(engines: Sequence[Engine]) -> str:
    """Of the engines that took part, and of the builds of those that are built apart."""
    names = (f"{engine.name}={getattr(engine, 'build_id', '')}" for engine in engines)
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:12]


@cache
def _versions() -> tuple[str, ...]:
    """Of the packages that bring kernels."""
    return (
        f"milkweed={_version('milkweed')}",
        f"torch={torch.__version__}",
        f"cuda={torch.version.cuda}",
        f"triton={_version('triton')}",
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
